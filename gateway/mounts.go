package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs/mountd"
	"github.com/yaoapp/sbgw/internal/logging"
)

// Budgets of the mount process: to answer when it is there or was just started,
// for a call to wait for the process that replaces a dead one, and to end.
const (
	mountdStart   = 20 * time.Second
	mountdReplace = 10 * time.Second
	mountdEnd     = 20 * time.Second
	// How long after a broken call its death may be told.
	mountdDeath = time.Second
)

// mounts is a core.Mounter over the mount process of the moment. It finds or
// starts the process, holds duplicates of its FUSE descriptors, so that its mounts
// outlast it until they are taken down in order, and replaces it when it died.
type mounts struct {
	spawn   mountd.Spawn
	root    string
	log     *slog.Logger
	remount func(context.Context) // attaches everything again

	life   context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	client  *mountd.Client // nil while it is being replaced, and after close
	process int
	changed chan struct{} // closed, and made anew, when client has changed
}

var _ core.Mounter = (*mounts)(nil)

func openMounts(ctx context.Context, c Config, program string, log *slog.Logger) (*mounts, error) {
	dir := c.Gateway.StateDir
	socket, fdSocket := filepath.Join(dir, "mountd.sock"), filepath.Join(dir, "mountd.fd.sock")
	argv := []string{program, "mountd", "--socket", socket, "--fd-socket", fdSocket, "--root", c.Mount.Root}
	if c.Mount.AllowOther {
		argv = append(argv, "--allow-other")
	}
	m := &mounts{
		spawn: mountd.Spawn{Argv: argv, Socket: socket, FDSocket: fdSocket, LogFile: filepath.Join(dir, "mountd.log")},
		root:  c.Mount.Root, log: log, remount: func(context.Context) {}, changed: make(chan struct{}),
	}
	m.life, m.cancel = context.WithCancel(context.Background())
	client, pid, err := m.ensure(ctx)
	if err != nil {
		m.cancel()
		return nil, err
	}
	m.set(client, pid)
	return m, nil
}

// ensure finds or starts the mount process.
func (m *mounts) ensure(ctx context.Context) (*mountd.Client, int, error) {
	ctx, cancel := context.WithTimeout(ctx, mountdStart)
	defer cancel()
	if !answers(m.spawn.Socket) {
		if err := checkMountRoot(m.root); err != nil {
			return nil, 0, err
		}
	}
	c, err := mountd.Ensure(ctx, m.spawn)
	if err != nil {
		return nil, 0, err
	}
	info, err := c.Info(ctx)
	if err == nil {
		err = sameRoot(info, m.root)
	}
	if err == nil {
		err = c.KeepFDs()
	}
	if err != nil {
		c.Close()
		return nil, 0, fmt.Errorf("mount process: %w", err)
	}
	m.log.Info("mount process connected", logging.PID, info.PID, logging.Version, info.Version)
	return c, info.PID, nil
}

// pid returns the mount process, 0 while there is none.
func (m *mounts) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// supervise replaces the mount process whenever it died, until close.
func (m *mounts) supervise() {
	for {
		m.mu.Lock()
		old, pid := m.client, m.process
		m.mu.Unlock()
		if old == nil {
			return // closed
		}
		select {
		case <-m.life.Done():
			return
		case <-old.Gone(): // and the kept descriptors: callers in its mounts get an error
		}
		if m.life.Err() != nil {
			return
		}
		m.log.Warn("mount process died; starting another one", logging.PID, pid)
		m.set(nil, 0)
		old.Close()
		if !m.replace() {
			return
		}
		m.remount(m.life)
	}
}

// replace starts a mount process until there is one, or the gateway ends.
func (m *mounts) replace() bool {
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 5*time.Second) {
		client, pid, err := m.ensure(m.life)
		if err == nil {
			m.set(client, pid)
			return true
		}
		m.log.Error("start mount process", logging.Err, err)
		select {
		case <-m.life.Done():
			return false
		case <-time.After(delay):
		}
	}
}

// current returns a client other than the one given, waiting for it while the
// process is being replaced.
func (m *mounts) current(ctx context.Context, not *mountd.Client) (*mountd.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, mountdReplace)
	defer cancel()
	for {
		m.mu.Lock()
		c, changed := m.client, m.changed
		m.mu.Unlock()
		if c != nil && c != not {
			return c, nil
		}
		select {
		case <-changed:
			continue
		case <-m.life.Done():
		case <-ctx.Done():
		}
		return nil, fmt.Errorf("%w: the mount process is being started again", core.ErrUnavailable)
	}
}

// set makes c the client of the moment, nil for none.
func (m *mounts) set(c *mountd.Client, pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client, m.process = c, pid
	close(m.changed)
	m.changed = make(chan struct{})
}

// do calls f with the client, and once more if the process died under it.
func (m *mounts) do(ctx context.Context, f func(*mountd.Client) error) error {
	c, err := m.current(ctx, nil)
	if err != nil {
		return err
	}
	err = f(c)
	if !errors.Is(err, core.ErrUnavailable) {
		return err
	}
	select {
	case <-c.Gone():
	case <-ctx.Done():
		return err
	case <-time.After(mountdDeath):
		return err
	}
	next, cerr := m.current(ctx, c)
	if cerr != nil {
		return err
	}
	return f(next)
}

// Attach implements core.Mounter.
func (m *mounts) Attach(ctx context.Context, w core.WorkspaceID, e core.Endpoint, o core.MountOptions) (path string, err error) {
	err = m.do(ctx, func(c *mountd.Client) error {
		path, err = c.Attach(ctx, w, e, o)
		return err
	})
	return path, err
}

// Detach implements core.Mounter.
func (m *mounts) Detach(ctx context.Context, w core.WorkspaceID) error {
	return m.do(ctx, func(c *mountd.Client) error { return c.Detach(ctx, w) })
}

// Settle implements core.Mounter.
func (m *mounts) Settle(ctx context.Context, w core.WorkspaceID) error {
	return m.do(ctx, func(c *mountd.Client) error { return c.Settle(ctx, w) })
}

// Refresh implements core.Mounter.
func (m *mounts) Refresh(ctx context.Context, w core.WorkspaceID, e core.Event) error {
	return m.do(ctx, func(c *mountd.Client) error { return c.Refresh(ctx, w, e) })
}

// Mounts implements core.Mounter.
func (m *mounts) Mounts(ctx context.Context) (list []core.MountState, err error) {
	err = m.do(ctx, func(c *mountd.Client) error {
		list, err = c.Mounts(ctx)
		return err
	})
	return list, err
}

// close lets go of the mount process, which goes on with its mounts.
func (m *mounts) close() {
	m.cancel()
	m.mu.Lock()
	c := m.client
	m.mu.Unlock()
	m.set(nil, 0)
	if c != nil {
		c.Close()
	}
}

// end takes every mount down and ends the mount process. supervise must have
// returned, or it would start another one.
func (m *mounts) end(ctx context.Context) error {
	m.mu.Lock()
	c, pid := m.client, m.process
	m.mu.Unlock()
	if c == nil {
		return nil
	}
	if err := c.Shutdown(ctx); err != nil {
		return fmt.Errorf("end mount process: %w", err)
	}
	if !waitDeadFor(ctx, pid, mountdEnd) {
		return fmt.Errorf("end mount process: %w: pid %d is still there after %s", core.ErrUnavailable, pid, mountdEnd)
	}
	return nil
}

// waitDeadFor tells whether a process ends within a time.
func waitDeadFor(ctx context.Context, pid int, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return waitDead(ctx, pid)
}

// waitDead returns true when the process has ended, also if its parent has not
// waited for it yet, and false when the context ends first. See pidfd_open(2).
func waitDead(ctx context.Context, pid int) bool {
	if pid <= 0 {
		return true
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH) || waitGone(ctx, pid)
	}
	defer unix.Close(fd)
	const tick = 100 // milliseconds, of looking at the context
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, tick)
		if n > 0 {
			return true
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return waitGone(ctx, pid)
		}
	}
	return false
}

// waitGone is waitDead for kernels before 5.3.
func waitGone(ctx context.Context, pid int) bool {
	for {
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}
