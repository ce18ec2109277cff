package tai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

// Budgets of a node: to answer after its start, and to end after SIGTERM.
const (
	startTimeout = 10 * time.Second
	endTimeout   = 10 * time.Second
	pollEvery    = 20 * time.Millisecond
)

// process is the node process of a local pool, running or not.
type process struct {
	state  string
	socket string
	args   []string // of tai, but for the program

	logFrom int64 // where the log of the node that was started last begins
}

func newProcess(cfg core.PoolConfig, o options, socket string) *process {
	p := &process{state: cfg.StateDir, socket: socket}
	p.args = []string{"serve", "--socket", socket, "--state", cfg.StateDir}
	for _, list := range [][]string{cfg.Hide, o.Hide} {
		for _, h := range list {
			p.args = append(p.args, "--hide", h)
		}
	}
	if o.eventDelay > 0 {
		p.args = append(p.args, "--event-delay", o.eventDelay.String())
	}
	return p
}

// peer is a running node: a descriptor of its process, to be closed.
type peer struct {
	pid int
	fd  *os.File
}

// find returns the node that listens on the socket, or nil. The process behind a
// listening socket is known to the kernel (SO_PEERCRED, unix(7)).
func (p *process) find() (*peer, error) {
	pid, err := p.listener()
	if pid == 0 || err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch node process %d: %w", pid, err)
	}
	n := &peer{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd")}
	// The number may have become another's before the descriptor was made.
	if again, err := p.listener(); err != nil || again != pid {
		n.fd.Close()
		return nil, err
	}
	return n, nil
}

// listener returns the number of the process that listens on the socket; 0: none.
func (p *process) listener() (int, error) {
	c, err := net.DialTimeout("unix", p.socket, time.Second)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for the node: %w", err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return 0, fmt.Errorf("ask who listens on %s: %w", p.socket, err)
	}
	return int(cred.Pid), nil
}

// gone returns when the process has ended or the context has.
func (n *peer) gone(ctx context.Context) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return // out of descriptors: look again
	}
	defer unix.Close(wake)
	stop := context.AfterFunc(ctx, func() { unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	fds := []unix.PollFd{{Fd: int32(n.fd.Fd()), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			break
		}
	}
	if !stop() { // the function has the descriptor until it has written
		unix.Read(wake, make([]byte, 8))
	}
}

// ensure returns the running node, and starts one if there is none, or if the one
// there is was started with other arguments: its boxes stay, and paths hidden
// since must be hidden from the next ones.
func (p *process) ensure(ctx context.Context) (*peer, error) {
	n, err := p.find()
	if err != nil {
		return nil, err
	}
	if n != nil && p.asWanted() {
		return n, nil
	}
	if n != nil {
		err := p.end(ctx, n)
		n.fd.Close()
		if err != nil {
			return nil, err
		}
	}
	return p.start(ctx)
}

// end asks a node to end.
func (p *process) end(ctx context.Context, n *peer) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := unix.PidfdSendSignal(int(n.fd.Fd()), unix.SIGTERM, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("end the node with the old settings: %w", err)
	}
	n.gone(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("%w: the node with the old settings, process %d, does not end", core.ErrUnavailable, n.pid)
	}
	return nil
}

// start starts a node and waits until it listens.
func (p *process) start(ctx context.Context) (*peer, error) {
	binary, err := findBinary()
	if err != nil {
		return nil, err
	}
	log, err := p.openLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, p.args...)
	cmd.Dir = "/"
	cmd.Env = environ()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the plugin's process group
	if err := p.noteArgs(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	ended := make(chan struct{})
	go func() { // for the node's life: it is reaped if it ends before we do
		defer close(ended)
		cmd.Wait()
	}()
	return p.awaitStart(ctx, ended)
}

// awaitStart waits until a node listens. One that ended meanwhile may have lost
// against another that started at the same time.
func (p *process) awaitStart(ctx context.Context, ended <-chan struct{}) (*peer, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if n, err := p.find(); n != nil || err != nil {
			return n, err
		}
		select {
		case <-ended:
			if n, err := p.find(); n != nil || err != nil {
				return n, err
			}
			return nil, p.failed("ended at once")
		case <-ctx.Done():
			return nil, p.failed("does not answer")
		case <-tick.C:
		}
	}
}

func (p *process) argsFile() string { return filepath.Join(p.state, "node.args") }

// noteArgs keeps the arguments of the node that is started now.
func (p *process) noteArgs() error {
	data, err := json.Marshal(p.args)
	if err != nil {
		return err
	}
	part := p.argsFile() + ".part"
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return fmt.Errorf("note the node's arguments: %w", err)
	}
	return os.Rename(part, p.argsFile())
}

// asWanted tells whether the last node was started with our arguments. What can't
// be read is another's.
func (p *process) asWanted() bool {
	want, err := json.Marshal(p.args)
	if err != nil {
		return false
	}
	have, err := os.ReadFile(p.argsFile())
	return err == nil && bytes.Equal(have, want)
}

// findBinary looks for the tai program: beside this one, above it (plugins have a
// folder of their own), then in PATH.
func findBinary() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, d := range []string{dir, filepath.Dir(dir)} {
		path := filepath.Join(d, "tai")
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	path, err := exec.LookPath("tai")
	if err != nil {
		return "", fmt.Errorf("%w: program tai, which runs the boxes of pool local, is neither in %s nor in %s nor in PATH; build it (make build)",
			core.ErrUnavailable, dir, filepath.Dir(dir))
	}
	return filepath.Abs(path)
}

// environ is what a node gets to see of our environment.
func environ() []string {
	var env []string
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}
