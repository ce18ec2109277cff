package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/oci"
	"github.com/yaoapp/sbgw/tai/rootfs"
)

// defaultTmpfs bounds the files in memory of a box without a memory limit.
const defaultTmpfs = 1 << 30

// start makes the root, the container and its main process. After a failure
// teardown is to be called.
func (s *shim) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.prepareDir(); err != nil {
		return err
	}
	if err := pruneMounts(neededPaths(s.dir, s.cfg)); err != nil {
		return err
	}
	user, err := s.mountRoot()
	if err != nil {
		return err
	}
	spec, err := oci.Spec(oci.Box{
		Spec: s.cfg.Spec, User: user, Rootfs: filepath.Join(s.dir, rootfs.Dir), Tool: s.cfg.Tool,
		Binds: s.cfg.Binds, Cgroup: s.cfg.Cgroup.Path, Host: s.cfg.Host,
	})
	if err != nil {
		return err
	}
	if err := WriteFile("config.json", spec); err != nil {
		return err
	}
	return s.startMain(ctx, user)
}

// prepareDir removes what an earlier shim left.
func (s *shim) prepareDir() error {
	for _, name := range []string{ctlSocket, execSocket, tempDir} {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	if err := os.Mkdir(tempDir, 0o700); err != nil {
		return err
	}
	// Where go-runc writes the processes of execs, with their environment.
	return os.Setenv("XDG_RUNTIME_DIR", filepath.Join(s.dir, tempDir))
}

// mountRoot mounts the box's root, finds its user and makes the directories that
// the box needs.
func (s *shim) mountRoot() (oci.User, error) {
	size := s.cfg.Spec.Memory
	if size == 0 {
		size = defaultTmpfs
	}
	upper, err := rootfs.Mount(rootfs.Config{
		Hide: s.cfg.Hide, Hostname: oci.Hostname(s.cfg.Spec.ID), TmpfsSize: size,
	})
	if err != nil {
		return oci.User{}, err
	}
	s.state.Upper = upper
	if upper == rootfs.UpperTmpfs {
		s.log.Warn("the box's files outside of volumes are in memory and go when it stops")
	}
	root, err := os.Open(rootfs.Dir)
	if err != nil {
		return oci.User{}, err
	}
	defer root.Close()
	user, err := oci.LookupUser(root, s.cfg.Spec.User)
	if err != nil {
		return oci.User{}, err
	}
	if err := s.adoptVolumes(user); err != nil {
		return oci.User{}, err
	}
	return user, s.makeWorkDir(root, user)
}

// adoptVolumes gives an empty volume that nobody had yet to the box's user.
func (s *shim) adoptVolumes(u oci.User) error {
	for _, b := range s.cfg.Binds {
		var st unix.Stat_t
		if err := unix.Stat(b.Source, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: b.Source, Err: err}
		}
		entries, err := os.ReadDir(b.Source)
		if err != nil {
			return err
		}
		if u.UID == 0 || st.Uid != 0 || b.ReadOnly || len(entries) > 0 {
			continue
		}
		if err := os.Lchown(b.Source, int(u.UID), int(u.GID)); err != nil {
			return err
		}
	}
	return nil
}

// makeWorkDir makes the working directory, in the volume it lies in if it does.
func (s *shim) makeWorkDir(root *os.File, u oci.User) error {
	dir := filepath.Join("/", s.cfg.Spec.WorkDir)
	under, rel := root, dir
	best := ""
	for _, b := range s.cfg.Binds {
		if !rootfs.Within(dir, b.Target) || len(b.Target) <= len(best) {
			continue
		}
		volume, err := os.Open(b.Source)
		if err != nil {
			return err
		}
		defer volume.Close()
		best, under, rel = b.Target, volume, dir[len(b.Target):]
	}
	if filepath.Clean("/"+rel) == "/" {
		return nil
	}
	if err := oci.MkdirIn(under, rel, u); err != nil {
		return core.Invalid("working directory %s: %s", dir, err)
	}
	return nil
}

// startMain creates the container, watches its main process and lets it go.
func (s *shim) startMain(ctx context.Context, u oci.User) error {
	id := string(s.cfg.Spec.ID)
	// A box whose shim was killed left its container.
	s.runc.Delete(ctx, id, &runc.DeleteOpts{Force: true})
	os.Remove(s.runc.Log)
	log, err := newBoundedLog(u.UID, u.GID)
	if err != nil {
		return err
	}
	s.main = log
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	mark := s.reaper.mark()
	err = s.runc.Create(ctx, id, s.dir, &runc.CreateOpts{
		IO: &stdio{in: null, out: log.w, err: log.w}, PidFile: filepath.Join(s.dir, tempDir, mainPIDFile),
	})
	if err != nil {
		return s.runtimeError("create container", s.runc.Log, err)
	}
	pid, err := runc.ReadPidFile(filepath.Join(tempDir, mainPIDFile))
	if err != nil {
		return err
	}
	ticks, err := ticksOf(pid)
	if err != nil {
		return err
	}
	s.state.Incarnation, s.state.PID, s.state.Ticks = s.cfg.Incarnation, pid, ticks
	status := s.reaper.watch(pid, mark)
	if err := s.runc.Start(ctx, id); err != nil {
		return s.runtimeError("start container", s.runc.Log, err)
	}
	s.state.StartedAt = time.Now()
	go func() {
		s.status = <-status
		close(s.ended)
	}()
	return nil
}

// exit describes the end of the main process. The container is still there.
func (s *shim) exit() Exit {
	code := exitCode(s.status)
	e := Exit{Incarnation: s.cfg.Incarnation, Code: &code, Reason: core.ReasonExited, FinishedAt: time.Now()}
	if !s.status.Signaled() {
		return e
	}
	e.Reason = core.ReasonKilled
	s.mu.Lock()
	killed := s.killed
	s.mu.Unlock()
	if oom, err := s.cfg.Cgroup.OOMKills(); err == nil && oom > 0 && !killed && s.status.Signal() == unix.SIGKILL {
		e.Reason = core.ReasonOOM
	}
	return e
}

// stop ends the main process and returns when it has.
func (s *shim) stop(grace time.Duration) {
	s.log.Info("stop box", logging.Duration, grace)
	if grace > 0 {
		s.reaper.signal(s.state.PID, unix.SIGTERM, false)
		select {
		case <-s.ended:
			return
		case <-time.After(grace):
		}
	}
	s.kill()
	<-s.ended
}

// kill kills the main process, and with it everything in the box.
func (s *shim) kill() {
	s.mu.Lock()
	s.killed = true
	s.mu.Unlock()
	s.reaper.signal(s.state.PID, unix.SIGKILL, false)
}

// runtimeError is a failure of the runtime in its own words.
func (s *shim) runtimeError(doing, logFile string, err error) error {
	data, rerr := os.ReadFile(logFile)
	if rerr != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	var entry struct{ Level, Msg string }
	for i := len(lines) - 1; i >= 0; i-- {
		if json.Unmarshal(lines[i], &entry) == nil && entry.Level == "error" && entry.Msg != "" {
			return fmt.Errorf("%s: %s", doing, entry.Msg)
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// stdio hands files to a runtime as they are.
type stdio struct {
	runc.IO
	in, out, err *os.File
}

// Set is of runc.IO.
func (s *stdio) Set(cmd *exec.Cmd) { cmd.Stdin, cmd.Stdout, cmd.Stderr = s.in, s.out, s.err }

var errEnded = errors.New("its main process has ended")
