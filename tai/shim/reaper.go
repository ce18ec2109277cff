package shim

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"

	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// reaper waits for every child of the process: those it starts (it is go-runc's
// monitor) and those it inherits as a subreaper, which are the processes that the
// runtime left in the box. A number is a child's for as long as reaper has not
// waited for it, so signals through it never reach a stranger.
type reaper struct {
	mu       sync.Mutex
	watched  map[int]chan unix.WaitStatus
	strays   map[int]stray // ended before anybody asked
	sequence uint64
}

// stray is a child that nobody watched when it ended.
type stray struct {
	status unix.WaitStatus
	at     uint64
}

// maxStrays bounds what is remembered of strays; beyond, all is forgotten.
const maxStrays = 256

var _ runc.ProcessMonitor = (*reaper)(nil)

func newReaper() *reaper {
	return &reaper{watched: map[int]chan unix.WaitStatus{}, strays: map[int]stray{}}
}

// run reaps until the context ends.
func (r *reaper) run(ctx context.Context) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	defer signal.Stop(signals)
	for {
		r.reap()
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
	}
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.sequence++
		if c, ok := r.watched[pid]; ok {
			delete(r.watched, pid)
			c <- status
			continue
		}
		if len(r.strays) >= maxStrays {
			clear(r.strays)
		}
		r.strays[pid] = stray{status, r.sequence}
	}
}

// mark returns the present for watch.
func (r *reaper) mark() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sequence
}

// watch returns a channel that gets the status of a child, which may have ended
// already, but not before mark.
func (r *reaper) watch(pid int, mark uint64) <-chan unix.WaitStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan unix.WaitStatus, 1)
	if s, ok := r.strays[pid]; ok && s.at > mark {
		delete(r.strays, pid)
		c <- s.status
		return c
	}
	r.watched[pid] = c
	return c
}

// signal sends a signal to a watched child, or to its group; one that was waited
// for is os.ErrProcessDone.
func (r *reaper) signal(pid int, sig unix.Signal, group bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.watched[pid]; !ok {
		return os.ErrProcessDone
	}
	if group {
		pid = -pid
	}
	return unix.Kill(pid, sig)
}

// Start starts a command for go-runc.
func (r *reaper) Start(cmd *exec.Cmd) (chan runc.Exit, error) {
	mark := r.mark()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	status := r.watch(cmd.Process.Pid, mark)
	ended := make(chan runc.Exit, 1)
	go func() {
		ended <- runc.Exit{Pid: cmd.Process.Pid, Status: exitCode(<-status), Timestamp: time.Now()}
	}()
	return ended, nil
}

// StartLocked is Start: no command of ours depends on the thread that started it.
func (r *reaper) StartLocked(cmd *exec.Cmd) (chan runc.Exit, error) { return r.Start(cmd) }

// Wait waits for a command of Start. The command's own Wait can't find the child
// any more, but ends the copying of its output.
func (r *reaper) Wait(cmd *exec.Cmd, ended chan runc.Exit) (int, error) {
	exit := <-ended
	cmd.Wait()
	return exit.Status, nil
}

// exitCode is a status as a shell tells it.
func exitCode(s unix.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
