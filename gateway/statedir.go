package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/config"
)

// prepareStateDir makes the state directory. Others may pass through it only if
// mounts that others may enter are below it; all else in there is closed to them
// by its own mode.
func prepareStateDir(c config.Config) error {
	dir := c.Gateway.StateDir
	mode := os.FileMode(0o700)
	if rel, err := filepath.Rel(dir, c.Mount.Root); err == nil && !strings.HasPrefix(rel, "..") && c.Mount.AllowOther {
		mode = 0o711
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return refused("make state directory", "gateway.state_dir", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return refused("look at state directory", "gateway.state_dir", err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return fmt.Errorf("state directory %s: %w: it belongs to user %d; run the gateway as that user or set gateway.state_dir", dir, core.ErrPermission, owner)
	}
	if err := os.Chmod(dir, mode); err != nil {
		return refused("close state directory to others", "gateway.state_dir", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "pools"), 0o700); err != nil {
		return refused("make state directory", "gateway.state_dir", err)
	}
	return nil
}

// refused adds to an error what would help if it is one of permission.
func refused(doing, key string, err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%s: %w: %w; run as root or set %s to a directory of your own", doing, core.ErrPermission, err, key)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// lockStateDir makes this process the state directory's only gateway. The lock
// ends with the file, thus with the process; the file has our pid in it.
func lockStateDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "gateway.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, refused("open lock", "gateway.state_dir", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		defer f.Close()
		return nil, fmt.Errorf("state directory %s: %w: in use by another gateway, pid %s; stop that one with `sbgw down` or set gateway.state_dir", dir, core.ErrConflict, lockHolder(f))
	}
	if err == nil {
		err = writePID(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func lockHolder(f *os.File) string {
	buf := make([]byte, 20)
	n, _ := f.ReadAt(buf, 0)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n]))); err == nil {
		return strconv.Itoa(pid)
	}
	return "unknown"
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}
