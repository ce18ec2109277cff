package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Where things are in a box's directory.
const (
	// Dir is the mount point of the box's root.
	Dir = "rootfs"
	// filesDir has the upper and work directories.
	filesDir = "files"
	// onDiskMark says that the box's files are on disk, and are not to be looked
	// for anywhere else.
	onDiskMark = "files.disk"
)

// Upper says where the files are that a box writes outside of volumes.
type Upper string

// Kinds of Upper.
const (
	// UpperDisk: in the box's directory; they stay until the box is removed.
	UpperDisk Upper = "disk"
	// UpperTmpfs: in memory; they are gone when the box stops.
	UpperTmpfs Upper = "tmpfs"
)

// Config is a root file system to make.
type Config struct {
	// Hide lists further paths of the machine to hide.
	Hide []string
	// Hostname is the name that the box gives itself.
	Hostname string
	// TmpfsSize bounds the files in memory where the disk does not do.
	TmpfsSize int64
}

// Mount makes the root of a box and mounts it at Dir. The process must be in the
// box's directory and in a mount namespace of its own. On failure nothing is
// mounted.
func Mount(c Config) (Upper, error) {
	layers, err := plan(c)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return "", err
	}
	diskErr := mountLayers(layers, c.Hostname)
	if diskErr == nil {
		return UpperDisk, os.WriteFile(onDiskMark, nil, 0o600)
	}
	if _, err := os.Lstat(onDiskMark); err == nil {
		return "", diskErr
	}
	if err := os.RemoveAll(filesDir); err != nil {
		return "", err
	}
	if err := mountTmpfs(c.TmpfsSize); err != nil {
		return "", errors.Join(diskErr, err)
	}
	if err := mountLayers(layers, c.Hostname); err != nil {
		unix.Unmount(filesDir, unix.MNT_DETACH)
		return "", fmt.Errorf("overlay on the root file system: %w; neither on disk (%w) nor in memory: "+
			"put state_dir on an ext4, xfs or btrfs volume; if the root itself is an overlay inside an overlay, "+
			"run the node one container level further out", err, diskErr)
	}
	return UpperTmpfs, nil
}

// Unmount takes down what Mount made.
func Unmount() error {
	var errs []error
	for _, dir := range []string{Dir, filesDir} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			errs = append(errs, &fs.PathError{Op: "unmount", Path: dir, Err: err})
		}
	}
	return errors.Join(errs...)
}

func plan(c Config) ([]Layer, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	var hide []string
	for _, p := range c.Hide {
		hide = append(hide, p)
		real, _, err := resolve("/", p)
		if err != nil {
			return nil, fmt.Errorf("hide %s: %w", p, err)
		}
		hide = append(hide, Aliases(mounts, real)...)
	}
	masks, err := Plan("/", hide)
	if err != nil {
		return nil, err
	}
	return Layers(mounts, masks), nil
}

func mountTmpfs(size int64) error {
	if err := os.MkdirAll(filesDir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", filesDir, "tmpfs", 0, fmt.Sprintf("mode=700,size=%d", size)); err != nil {
		return fmt.Errorf("mount tmpfs for the box's files: %w", err)
	}
	return nil
}

// mountLayers fills the upper layers and mounts every overlay, all or none.
func mountLayers(layers []Layer, hostname string) (err error) {
	for i, l := range layers {
		upper, work, err := upperOf(l)
		if err != nil {
			return err
		}
		for _, m := range l.Masks {
			if err := applyMask(upper, l.Lower, m); err != nil {
				return err
			}
		}
		if i == 0 {
			if err := freshFiles(upper, hostname); err != nil {
				return err
			}
		}
		if err := mountLayer(l.Lower, upper, work); err != nil {
			if i > 0 {
				unix.Unmount(Dir, unix.MNT_DETACH)
			}
			return err
		}
	}
	return nil
}

// upperOf makes a layer's upper and work directories. Their names have no
// character that means something in mount options.
func upperOf(l Layer) (upper, work string, err error) {
	base := filepath.Join(filesDir, url.QueryEscape(l.Lower))
	upper, work = filepath.Join(base, "upper"), filepath.Join(base, "work")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return "", "", err
	}
	if _, err := os.Lstat(upper); err == nil {
		return upper, work, nil
	}
	return upper, work, copyDir(upper, l.Lower)
}

func freshFiles(upper, hostname string) error {
	files := map[string]string{
		"etc/hostname":    hostname + "\n",
		"etc/hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + hostname + "\n",
		"etc/resolv.conf": "# This box has no network.\n",
	}
	for p, content := range files {
		if err := writeFresh(upper, "/", p, content); err != nil {
			return err
		}
	}
	return nil
}

func mountLayer(lower, upper, work string) error {
	fd, err := mountPoint(lower)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the box has put something else there
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// index and metacopy would tie the upper layer to this lower one; a redirect
	// would let a box move a directory out from under a mask.
	options := "lowerdir=" + escape(lower) + ",upperdir=" + upper + ",workdir=" + work +
		",index=off,metacopy=off,redirect_dir=nofollow"
	target := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount overlay over %s: %w", lower, err)
	}
	return nil
}

// mountPoint opens where a layer goes, following nothing that a box may have made.
func mountPoint(lower string) (int, error) {
	rel := "." + lower
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(Dir, rel), how)
	if err == unix.ENOENT || err == unix.ELOOP || err == unix.ENOTDIR {
		return -1, fs.ErrNotExist
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: lower, Err: err}
	}
	return fd, nil
}

// escape protects what separates mount options and lower layers.
func escape(p string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(p)
}
