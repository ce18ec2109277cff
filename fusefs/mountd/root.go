package mountd

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs"
	"github.com/yaoapp/sbgw/internal/logging"
)

// fsType is our file system's type in mountinfo.
const fsType = "fuse." + fusefs.Subtype

// mountRoot is the directory of all mounts, held by a lock.
type mountRoot struct {
	path string
	lock *os.File
}

// openRoot makes the mount root ready: it takes its lock, detaches what a dead
// process left mounted there, and refuses one that holds anything of others.
func openRoot(path string, allowOther bool, log *slog.Logger) (*mountRoot, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
		return nil, core.Invalid("mount root %q: it must be an absolute path of a directory of its own", path)
	}
	mode := os.FileMode(0o700)
	if allowOther {
		mode = 0o755
	}
	if err := os.MkdirAll(path, mode); err != nil {
		return nil, fmt.Errorf("make the mount root: %w", err)
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("resolve the mount root: %w", err)
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the mount root: %w", err)
	}
	r := &mountRoot{path: path, lock: lock}
	if err := r.claim(log); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return r, nil
}

func (r *mountRoot) claim(log *slog.Logger) error {
	if err := unix.Flock(int(r.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return core.Invalid("mount root %s is in use by another mount process%s", r.path, holderOf(r.lock))
	}
	if err := clearStale(r.path, log); err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read mountinfo: %w", err)
	}
	taken := map[string]string{}
	for _, m := range mounts {
		taken[m.Mountpoint] = m.FSType
	}
	if t, ok := taken[r.path]; ok {
		return core.Invalid("mount root %s is itself a mount (%s): name a directory below it", r.path, t)
	}
	entries, err := os.ReadDir(r.path)
	if err != nil {
		return fmt.Errorf("list the mount root: %w", err)
	}
	for _, e := range entries {
		p := filepath.Join(r.path, e.Name())
		if t, ok := taken[p]; ok {
			return core.Invalid("mount root %s has a foreign mount %s (%s): unmount it or name another root", r.path, e.Name(), t)
		}
		if rest, err := os.ReadDir(p); err != nil || len(rest) > 0 {
			return core.Invalid("mount root %s holds %s, which is not an empty workspace directory: move it away or name another root", r.path, e.Name())
		}
	}
	return nil
}

func (r *mountRoot) close() { _ = r.lock.Close() }

// clearStale detaches our mounts below the root. Their process is dead, as we
// have its lock. The paths are never walked into: that would fail or hang.
func clearStale(root string, log *slog.Logger) error {
	for range 1000 { // mounts may be stacked
		mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter(fsType))
		if err != nil {
			return fmt.Errorf("read mountinfo: %w", err)
		}
		found := false
		for _, m := range mounts {
			if filepath.Dir(m.Mountpoint) != root {
				continue
			}
			found = true
			log.Warn("detaching a mount that a dead process left", logging.Path, m.Mountpoint)
			if err := unmount(m.Mountpoint, true); err != nil {
				return fmt.Errorf("detach stale mount %s: %w", m.Mountpoint, err)
			}
		}
		if !found {
			return nil
		}
	}
	return core.Invalid("mount root %s: stale mounts don't go away", root)
}

// lockSocket makes sure that one process serves a socket.
func lockSocket(socket string) (unlock func(), err error) {
	f, err := os.OpenFile(socket+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the socket: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		return nil, fmt.Errorf("socket %s: %w: a mount process serves it already%s", socket, core.ErrConflict, holderOf(f))
	}
	return func() { _ = f.Close() }, nil
}

// holderOf names the process that has a flock on f, as far as proc_locks(5)
// tells.
func holderOf(f *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ""
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return ""
	}
	defer locks.Close()
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for s := bufio.NewScanner(locks); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != want {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			return fmt.Sprintf(" (pid %d)", pid)
		}
	}
	return ""
}
