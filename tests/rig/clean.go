package rig

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Down stops gateway and boxes by `sbgw down` and checks that no process, mount
// or socket is left.
func (r *Rig) Down(t *testing.T) Result {
	t.Helper()
	res := r.CLI(t, "down")
	if res.Code != 0 {
		t.Errorf("sbgw down: exit code %d, want 0\nstderr: %s", res.Code, res.Stderr)
	}
	r.checkGone(t)
	return res
}

// checkGone waits a moment for what is on its way out.
func (r *Rig) checkGone(t *testing.T) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if left = r.leftovers(); len(left) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("left behind after sbgw down:\n%s", strings.Join(left, "\n"))
}

// leftovers says what still belongs to the rig: processes, mounts, sockets.
func (r *Rig) leftovers() []string {
	var left []string
	for _, pid := range r.processes() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d: %s", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
	}
	for _, m := range mounts("self", r.Dir) {
		left = append(left, "mount "+m)
	}
	_ = filepath.WalkDir(r.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			left = append(left, "socket "+path)
		}
		return nil
	})
	return left
}

// processes returns the pids of all processes that have to do with the rig: by
// their arguments, or, in boxes, by the overlay they live in.
func (r *Rig) processes() []int {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || isZombie(pid) {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		ns, _ := os.Readlink(filepath.Join("/proc", e.Name(), "ns/mnt"))
		if bytes.Contains(cmdline, []byte(r.Dir+"/")) || ns != own && len(mounts(e.Name(), r.Dir)) > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// mounts returns the lines of a process's mount table with dir in them. It reads
// the table only: touching a dead mount could hang.
func mounts(pid, dir string) []string {
	b, _ := os.ReadFile(filepath.Join("/proc", pid, "mountinfo"))
	var found []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, dir+"/") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// Alive reports whether a process exists and is not a zombie.
func Alive(pid int) bool { return syscall.Kill(pid, 0) == nil && !isZombie(pid) }

func isZombie(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}

// clean ends everything, however the test ended, and deletes the directory.
func (r *Rig) clean(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), downIn)
	defer cancel()
	if len(r.leftovers()) > 0 {
		if out, err := r.Command(ctx, "down").CombinedOutput(); err != nil {
			t.Errorf("sbgw down at the end: %v\n%s", err, out)
		}
		r.checkGone(t)
	}
	r.force()
	if r.serve != nil {
		<-r.ended
	}
	r.checkLogs(t)
	if t.Failed() {
		t.Logf("gateway's log:\n%s", tail(r.Log(), 60))
	}
	if r.log != nil {
		r.log.Close()
	}
	if err := os.RemoveAll(r.Dir); err != nil {
		t.Errorf("remove %s: %v", r.Dir, err)
	}
}

// force kills and unmounts what `sbgw down` left, so that a failed test leaves
// the machine as it was.
func (r *Rig) force() {
	for range 3 {
		for _, pid := range r.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for range 3 {
		for _, m := range mounts("self", r.Dir) {
			if f := strings.Fields(m); len(f) > 4 && strings.HasPrefix(f[4], r.Dir+"/") {
				_ = unix.Unmount(f[4], unix.MNT_DETACH)
			}
		}
	}
}

// checkLogs fails the test for a race report or a panic in any process's log.
func (r *Rig) checkLogs(t *testing.T) {
	_ = filepath.WalkDir(r.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if d.IsDir() && path != r.Dir && (d.Name() == "volumes" || d.Name() == "upper" || path == r.Root) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".log") {
			return nil
		}
		b, _ := os.ReadFile(path)
		for _, sign := range []string{"DATA RACE", "panic:", "fatal error:"} {
			if i := bytes.Index(b, []byte(sign)); i >= 0 {
				t.Errorf("%s has %q:\n%s", path, sign, tail(string(b[i:min(len(b), i+6000)]), 80))
				break
			}
		}
		return nil
	})
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
