package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// startProcess starts a shim in a session of its own, with a minimal environment
// and ready as its descriptor 3.
func startProcess(dir, binary string, ready *os.File) (*os.Process, error) {
	log, err := os.OpenFile(filepath.Join(dir, shimLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, "shim", "--dir", dir)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{ready}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// There is one shim for every box: memory counts, speed hardly does.
	cmd.Env = []string{"PATH=" + searchPath, "GOMAXPROCS=2", "GOGC=50"}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return cmd.Process, nil
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func terminate(p *os.Process) { p.Signal(unix.SIGTERM) }
