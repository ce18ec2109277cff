package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/logging"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
	"github.com/yaoapp/sbgw/tai/rootfs"
)

const (
	// startTimeout bounds bringing a box up, teardownTimeout taking it down.
	startTimeout    = 60 * time.Second
	teardownTimeout = 20 * time.Second
	// cgroupTimeout bounds the wait for killed processes to leave a cgroup.
	cgroupTimeout = 2 * time.Second
	// lastWords is how long the shim stays after its box ended for execs whose
	// output is still being read.
	lastWords = 10 * time.Second
	// shutdownGrace is what a box gets when the shim itself is told to end.
	shutdownGrace = 2 * time.Second
	// readyFD is where the shim answers the process that spawned it, once.
	readyFD = 3
)

// Main is `tai shim`: it runs the box of a directory until it ends. It answers on
// descriptor 3 when the box runs or can't.
func Main(dir string, inNamespace bool) error {
	if !inNamespace {
		err := enterNamespace([]string{"tai", "shim", "--dir", dir, "--in-namespace"})
		answer(err)
		return err
	}
	unix.CloseOnExec(readyFD)
	log := logging.Text(os.Stderr, slog.LevelInfo)
	s, err := open(dir, log)
	if err != nil {
		answer(err)
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer cancel()
	return s.run(ctx)
}

// answer tells whoever spawned the shim how the start went. It may have died.
func answer(err error) {
	f := os.NewFile(readyFD, "ready")
	if f == nil {
		return
	}
	defer f.Close()
	reply := &boxv1.ErrorDetail{}
	if err != nil {
		reply = grpcerr.Detail(err)
	}
	if err := json.NewEncoder(f).Encode(reply); err != nil {
		return
	}
}

// shim runs one start of one box. Its process's working directory is the box's.
type shim struct {
	log    *slog.Logger
	cfg    Config
	dir    string
	lock   *os.File
	runc   *runc.Runc
	reaper *reaper
	hub    *hub
	main   *boundedLog
	execs  sync.WaitGroup // connections of execs

	state  State
	ended  chan struct{} // the main process ended
	status unix.WaitStatus

	mu       sync.Mutex
	killed   bool // by us
	sequence int
}

// open reads the box's directory and takes its lock.
func open(dir string, log *slog.Logger) (*shim, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Chdir(dir); err != nil {
		return nil, err
	}
	unix.Umask(0o022)
	cfg, err := ReadConfig(".")
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("box %s has a shim already: %w", cfg.Spec.ID, err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	s := &shim{
		log: log.With(logging.Box, cfg.Spec.ID), cfg: cfg, dir: dir, lock: lock,
		runc: &runc.Runc{
			Command: cfg.Runtime, Root: cfg.RuntimeRoot,
			Log: filepath.Join(dir, tempDir, runtimeLog), LogFormat: runc.JSON,
		},
		reaper: newReaper(), hub: newHub(), ended: make(chan struct{}),
	}
	runc.Monitor = s.reaper
	return s, nil
}

// run brings the box up, serves it until its main process ends, and takes it down.
func (s *shim) run(ctx context.Context) error {
	reaping, stopReaping := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { s.reaper.run(reaping) })
	defer background.Wait()
	defer stopReaping()

	err := s.start(ctx)
	if err != nil {
		err = errors.Join(err, s.teardown())
		answer(err)
		return err
	}
	listeners, err := s.listen()
	if err == nil {
		err = WriteFile(stateFile, s.state)
	}
	if err != nil {
		s.kill()
		<-s.ended
		err = errors.Join(err, s.teardown())
		answer(err)
		return err
	}
	s.hub.update(func(st *Status) { st.State = s.state })
	background.Go(func() { s.serve(listeners.ctl, s.serveControl) })
	background.Go(func() { s.serve(listeners.exec, s.serveExec) })
	answer(nil)
	s.log.Info("box runs", logging.PID, s.state.PID)

	select {
	case <-s.ended:
	case <-ctx.Done():
		s.stop(shutdownGrace)
	}
	exit := s.exit()
	err = s.teardown()
	err = errors.Join(err, s.finish(exit))
	listeners.Close()
	s.waitExecs()
	s.hub.close()
	return err
}

// finish records the end and tells it. From then on the box may be started again.
func (s *shim) finish(exit Exit) error {
	err := WriteExit(".", exit)
	// Before the lock goes, and with it the names to a later shim of the box.
	for _, name := range []string{ctlSocket, execSocket} {
		err = errors.Join(err, os.Remove(name))
	}
	s.lock.Close()
	s.log.Info("box ended", logging.Reason, exit.Reason)
	s.hub.update(func(st *Status) { st.Exit = &exit })
	return err
}

func (s *shim) waitExecs() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.execs.Wait()
	}()
	select {
	case <-done:
	case <-time.After(lastWords):
		s.log.Warn("output of an exec was not read in time")
	}
}

// teardown removes the container and what was mounted for it.
func (s *shim) teardown() error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if err := s.runc.Delete(ctx, string(s.cfg.Spec.ID), &runc.DeleteOpts{Force: true}); err != nil {
		s.log.Warn("delete container", logging.Err, err)
	}
	// The runtime did it, unless it was killed.
	if err := s.cfg.Cgroup.RemoveWithin(cgroupTimeout); err != nil {
		s.log.Warn("remove cgroup", logging.Err, err)
	}
	if s.main != nil {
		s.main.Close()
	}
	return rootfs.Unmount()
}

// boundedLog keeps the last of what the main process writes: it begins again when
// it is full, and keeps the one before.
type boundedLog struct {
	r, w *os.File
	done chan struct{}
}

const mainLogSize = 1 << 20

func newBoundedLog(uid, gid uint32) (*boundedLog, error) {
	r, w, err := pipe(uid, gid, true)
	if err != nil {
		return nil, err
	}
	l := &boundedLog{r: r, w: w, done: make(chan struct{})}
	go l.copy()
	return l, nil
}

func (l *boundedLog) copy() {
	defer close(l.done)
	for {
		f, err := os.OpenFile(mainLog, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			io.Copy(io.Discard, l.r)
			return
		}
		_, err = io.CopyN(f, l.r, mainLogSize)
		f.Close()
		if err != nil {
			return
		}
		os.Rename(mainLog, mainLog+".1")
	}
}

// Close ends the log; everything written before is in it.
func (l *boundedLog) Close() error {
	l.w.Close()
	l.r.SetReadDeadline(time.Now().Add(lingerTime))
	<-l.done
	return l.r.Close()
}
