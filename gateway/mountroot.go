package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs"
	"github.com/yaoapp/sbgw/fusefs/mountd"
)

// checkMountRoot refuses a mount root that holds anything but our own workspace
// directories, before the mount process is started on it. Nothing in it is
// opened but directories that are not mounts: a mount of ours may be dead.
func checkMountRoot(root string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(realPath(root)))
	if err != nil {
		return fmt.Errorf("read mountinfo: %w", err)
	}
	types := map[string]string{}
	for _, m := range mounts {
		types[m.Mountpoint] = m.FSType
	}
	if t, mounted := types[realPath(root)]; mounted {
		return core.Invalid("mount root %s is itself a mount (%s); set mount.root to a directory below it", root, t)
	}
	entries, err := os.ReadDir(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return refused("look at the mount root", "mount.root", err)
	case err != nil:
		return core.Invalid("mount root %s: %v; set mount.root to a directory of its own", root, err)
	}
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		switch t, mounted := types[filepath.Join(realPath(root), e.Name())]; {
		case mounted && t != "fuse."+fusefs.Subtype:
			return core.Invalid("mount root %s has a foreign mount %s (%s); unmount it or set mount.root to another directory", root, e.Name(), t)
		case !mounted && !isEmptyDir(path, e):
			return core.Invalid("mount root %s has %s in it, which is not ours; move it away or set mount.root to another directory", root, e.Name())
		}
	}
	return nil
}

func isEmptyDir(path string, e os.DirEntry) bool {
	if !e.IsDir() {
		return false
	}
	rest, err := os.ReadDir(path)
	return err == nil && len(rest) == 0
}

// realPath is a path as mountinfo has it; one that is not there has no mounts.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// sameRoot refuses a mount process of another configuration.
func sameRoot(info mountd.Info, root string) error {
	if info.Root == realPath(root) {
		return nil
	}
	return fmt.Errorf("%w: pid %d serves mount root %s, not %s; run `sbgw down` with the old configuration first", core.ErrConflict, info.PID, info.Root, root)
}
