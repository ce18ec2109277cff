package mountd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs"
	"github.com/yaoapp/sbgw/internal/logging"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
	"github.com/yaoapp/sbgw/volume"
)

// settings are what a mount is made with: with others it is made again.
type settings struct {
	symlinks   fusefs.Symlinks
	squash     bool
	uid, gid   uint32
	allowOther bool
	readOnly   bool
}

// mount is one mounted volume. Attach and detach of one workspace run one at a
// time, so its fields need no lock.
type mount struct {
	workspace string
	path      string
	set       settings
	endpoint  core.Endpoint
	socket    string // of this process's API, see Reach
	log       *slog.Logger

	link   *link
	fs     *fusefs.FS
	kernel *kernelMount
	served <-chan struct{} // closed when the kernel has let go
	bind   bool            // a bind mount of a local directory: no FS
}

// link is a volume client with the callbacks it was opened with, which come to
// nothing before it is bound and after it is replaced.
type link struct {
	*volume.Client
	bound atomic.Bool
}

// openLink connects to a volume for fs.
func openLink(ctx context.Context, e core.Endpoint, fs *fusefs.FS, log *slog.Logger) (*link, error) {
	l := &link{}
	c, err := volume.Open(ctx, e, volume.Options{
		Log: log,
		OnEvents: func(ev *volumev1.Events) {
			if l.bound.Load() {
				fs.Events(ev)
			}
		},
		OnSession: func(h *volumev1.HelloResponse) {
			if l.bound.Load() {
				fs.Session(h)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the volume: %w", err)
	}
	l.Client = c
	return l, nil
}

// errorRoom is how long a mount that nobody lets go of answers ESTALE before its
// connection is aborted.
const errorRoom = 10 * time.Second

// newMount connects to the volume and mounts it. Nothing is mounted if the
// volume does not answer: an error here, never an empty directory.
func (s *service) newMount(ctx context.Context, workspace string, e core.Endpoint, set settings) (*mount, error) {
	path := filepath.Join(s.root.path, workspace)
	m := &mount{
		workspace: workspace, path: path, set: set, endpoint: e, socket: s.conf.Socket,
		log: s.log.With(logging.Workspace, workspace),
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make the mount point: %w", err)
	}
	err := m.attach(ctx)
	if err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	return m, nil
}

func (m *mount) attach(ctx context.Context) error {
	if m.endpoint.Kind == core.EndpointDir && m.set.symlinks == fusefs.SymlinksRaw && !m.set.squash {
		return m.bindDir()
	}
	m.fs = fusefs.New(fusefs.Options{
		Path: m.path, Symlinks: m.set.symlinks, Squash: m.set.squash, UID: m.set.uid, GID: m.set.gid, Log: m.log,
	})
	var err error
	if m.link, err = openLink(ctx, Reach(m.endpoint, m.socket), m.fs, m.log); err != nil {
		m.fs.Close()
		return err
	}
	m.link.bound.Store(true)
	m.fs.Bind(m.link)
	if err := m.mountKernel(); err != nil {
		m.fs.Close()
		return errors.Join(err, m.link.Close())
	}
	return nil
}

func (m *mount) mountKernel() error {
	k, err := mountFUSE(m.path, mountOptions{
		allowOther: m.set.allowOther, readOnly: m.set.readOnly, noFollow: m.set.symlinks == fusefs.SymlinksNoFollow,
	})
	if err != nil {
		return err
	}
	m.kernel = k
	keep, err := unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("duplicate the FUSE descriptor: %w", err), unix.Close(k.fd), unmount(m.path, true))
	}
	serving, err := m.fs.Serve(k.fd)
	k.fd = keep
	if err != nil {
		return errors.Join(err, unix.Close(keep), unmount(m.path, true))
	}
	m.served = serving
	return nil
}

// bindDir shows a local directory as it is. That is right only where links may
// lead anywhere and owners are shown as they are.
func (m *mount) bindDir() error {
	if err := unix.Mount(m.endpoint.Address, m.path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", m.endpoint.Address, err)
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV)
	if m.set.readOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", m.path, "", flags, ""); err != nil {
		return errors.Join(fmt.Errorf("restrict the bind mount: %w", err), unmount(m.path, true))
	}
	m.bind = true
	return nil
}

// rebind moves the mount to another connection to the same volume; open files
// and what the kernel knows stay, and are reclaimed when used.
func (m *mount) rebind(ctx context.Context, e core.Endpoint) error {
	fresh, err := openLink(ctx, Reach(e, m.socket), m.fs, m.log)
	if err != nil {
		return err
	}
	old := m.link
	old.bound.Store(false)
	fresh.bound.Store(true)
	m.fs.Bind(fresh)
	m.link, m.endpoint = fresh, e
	if err := old.Close(); err != nil {
		m.log.Debug("closing the former connection", logging.Err, err)
	}
	return nil
}

// same tells whether e and set need nothing to be done.
func (m *mount) same(e core.Endpoint, set settings) bool {
	return m.set == set && m.endpoint.Kind == e.Kind && m.endpoint.Address == e.Address &&
		m.endpoint.Session == e.Session && m.endpoint.Instance == e.Instance &&
		string(m.endpoint.Token) == string(e.Token) && fmt.Sprint(m.endpoint.Argv) == fmt.Sprint(e.Argv)
}

// rebindable tells whether e is the same volume behind another connection.
func (m *mount) rebindable(e core.Endpoint, set settings) bool {
	return !m.bind && m.set == set && m.endpoint.Session == e.Session && m.endpoint.Instance == e.Instance
}

// unmount takes the mount away: at once if nobody uses it, else lazily, and then
// its users get ESTALE. The returned function waits for the end and cleans up; it
// takes at most errorRoom and a little.
func (m *mount) unmount() (finish func(), err error) {
	err = unmount(m.path, m.bind)
	if errors.Is(err, unix.EBUSY) {
		m.log.Info("mount is busy, detaching it lazily")
		err = unmount(m.path, true)
	}
	if err != nil {
		return func() {}, fmt.Errorf("unmount %s: %w", m.path, err)
	}
	if !m.bind {
		// What still comes are releases; the end of the session does the same.
		m.fs.Detach()
	}
	if rerr := os.Remove(m.path); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		m.log.Warn("mount point stays", logging.Path, m.path, logging.Err, rerr)
	}
	return m.finish, nil
}

func (m *mount) finish() {
	if m.bind {
		return
	}
	t := time.NewTimer(errorRoom)
	defer t.Stop()
	select {
	case <-m.served:
	case <-t.C:
		m.log.Warn("users of a detached mount don't let go, aborting it")
		if err := abort(m.kernel.conn); err != nil {
			m.log.Error("abort failed", logging.Err, err)
		}
		<-m.served
	}
	if err := m.link.Close(); err != nil {
		m.log.Debug("closing the connection", logging.Err, err)
	}
}
