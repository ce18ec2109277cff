package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/tai/rootfs"
)

// enterNamespace executes this program again, with argv, in a mount namespace of
// its own: what is mounted there never shows on the machine, what the machine
// unmounts goes here too. It returns only on failure.
func enterNamespace(argv []string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := ownRoot(); err != nil {
		return fmt.Errorf("root of the new mount namespace: %w", err)
	}
	return fmt.Errorf("execute again: %w", unix.Exec("/proc/self/exe", argv, os.Environ()))
}

// ownRoot makes all mounts of the namespace slaves of the machine's, and the
// process's root the root of the namespace. It is another one after chroot(2), and then a process that the runtime sends into a box would
// get to the machine's root: setns(2) goes to the namespace's. The calling thread
// has its root for itself, as unshare(2) of a mount namespace sees to.
func ownRoot() error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	var here, top unix.Statx_t
	const mask = unix.STATX_INO | unix.STATX_MNT_ID
	if err := unix.Statx(root, "", unix.AT_EMPTY_PATH, mask, &here); err != nil {
		return err
	}
	ns, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts slaves: %w", err)
	}
	if err := unix.Statx(unix.AT_FDCWD, "/", 0, mask, &top); err != nil {
		return err
	}
	if here.Mnt_id == top.Mnt_id && here.Ino == top.Ino {
		return nil
	}
	tree, err := unix.OpenTree(root, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	if err := unix.Fchdir(tree); err != nil {
		return err
	}
	return unix.Chroot(".")
}

// pruneMounts unmounts, in this namespace, everything that the shim does not need,
// so that it keeps nothing of the machine's in use: a file system that is
// unmounted there would live on here, and a FUSE mount would keep its server
// waiting.
func pruneMounts(needed []string) error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	for _, m := range slices.Backward(mounts) {
		if keepMount(m, needed) {
			continue
		}
		// What is gone or covered by another mount is as good as unmounted.
		unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return nil
}

func keepMount(m *mountinfo.Info, needed []string) bool {
	system := strings.HasPrefix(m.Mountpoint, "/lib")
	for _, dir := range []string{"/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/opt", "/nix"} {
		system = system || rootfs.Within(m.Mountpoint, dir)
	}
	if system && !strings.HasPrefix(m.FSType, "fuse") {
		return true
	}
	return slices.ContainsFunc(needed, func(p string) bool { return rootfs.Within(p, m.Mountpoint) })
}

// neededPaths are the paths of a start that must stay reachable.
func neededPaths(dir string, c Config) []string {
	paths := []string{dir, c.Runtime, c.RuntimeRoot, c.Tool}
	for _, b := range c.Binds {
		paths = append(paths, b.Source)
	}
	for i, p := range paths {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			paths[i] = real
		}
	}
	return paths
}
