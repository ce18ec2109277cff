package mountd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/fusefs"
)

// kernelMount is a FUSE mount made by mountFUSE.
type kernelMount struct {
	path string
	fd   int    // /dev/fuse, to be served
	conn uint32 // the connection's number, for abort
}

// mountOptions are the options that the kernel is told.
type mountOptions struct {
	allowOther, readOnly, noFollow bool
}

// mountFUSE mounts at path: by itself where it may, else by fusermount3.
func mountFUSE(path string, o mountOptions) (*kernelMount, error) {
	var fd int
	var err error
	if os.Geteuid() == 0 {
		fd, err = mountDirect(path, o)
	} else {
		fd, err = mountHelper(path, o)
	}
	if err != nil {
		return nil, err
	}
	m := &kernelMount{path: path, fd: fd}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err == nil && len(mounts) > 0 {
		m.conn = uint32(mounts[0].Minor)
	}
	return m, nil
}

func mountDirect(path string, o mountOptions) (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/fuse: %w: load the fuse module, or pass the device into this container", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if o.readOnly {
		flags |= unix.MS_RDONLY
	}
	if o.noFollow {
		flags |= unix.MS_NOSYMFOLLOW
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,max_read=%d,default_permissions",
		fd, unix.S_IFDIR, os.Geteuid(), os.Getegid(), fusefs.MaxRequest)
	if o.allowOther {
		data += ",allow_other"
	}
	if err := unix.Mount(fusefs.Source, path, fsType, flags, data); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mount %s: %w", path, err)
	}
	return fd, nil
}

// mountHelper has the set-uid helper mount, which sends the descriptor back over
// the socket named by _FUSE_COMMFD.
func mountHelper(path string, o mountOptions) (int, error) {
	if o.noFollow {
		return -1, core.Unsupported(`symlinks = "nofollow" without root`)
	}
	helper, err := exec.LookPath("fusermount3")
	if err != nil {
		return -1, fmt.Errorf("mount without root: %w: install fuse3", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket pair: %w", err)
	}
	defer unix.Close(pair[0])
	remote := os.NewFile(uintptr(pair[1]), "fusermount3")
	defer remote.Close()

	opts := []string{"nosuid", "nodev", "default_permissions", "fsname=" + fusefs.Source, "subtype=" + fusefs.Subtype,
		"max_read=" + strconv.Itoa(fusefs.MaxRequest)}
	if o.allowOther {
		opts = append(opts, "allow_other")
	}
	if o.readOnly {
		opts = append(opts, "ro")
	}
	cmd := exec.Command(helper, "-o", strings.Join(opts, ","), "--", path)
	cmd.Env = []string{"_FUSE_COMMFD=3"}
	cmd.ExtraFiles = []*os.File{remote}
	if out, err := cmd.CombinedOutput(); err != nil {
		return -1, fmt.Errorf("mount %s by fusermount3: %w: %s", path, err, strings.TrimSpace(string(out)))
	}
	_ = remote.Close()
	return receiveFD(pair[0])
}

func receiveFD(sock int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(sock, make([]byte, 8), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("receive the FUSE descriptor: %w", err)
	}
	fds, err := parseRights(oob[:n])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("receive the FUSE descriptor: %d descriptors, %w", len(fds), errors.Join(err, syscall.EPROTO))
	}
	return fds[0], nil
}

func parseRights(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, nil
}

// unmount detaches a mount by its path, which the kernel resolves without asking
// the mount's process. A busy one is EBUSY unless lazy.
func unmount(path string, lazy bool) error {
	if os.Geteuid() != 0 {
		args := []string{"-u"}
		if lazy {
			args = append(args, "-z")
		}
		out, err := exec.Command("fusermount3", append(args, "--", path)...).CombinedOutput()
		if err == nil {
			return nil
		}
		if strings.Contains(string(out), "busy") {
			return unix.EBUSY
		}
		return fmt.Errorf("fusermount3: %w: %s", err, strings.TrimSpace(string(out)))
	}
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	if err := unix.Unmount(path, flags); err != nil && !errors.Is(err, unix.EINVAL) {
		return err // EINVAL: it is no mount (any more)
	}
	return nil
}

// abort ends a FUSE connection by fusectl: every caller gets an error. The file
// system is mounted for the moment where the machine has not done so.
func abort(conn uint32) error {
	const usual = "/sys/fs/fuse/connections"
	name := filepath.Join(strconv.FormatUint(uint64(conn), 10), "abort")
	err := os.WriteFile(filepath.Join(usual, name), []byte("1"), 0)
	if err == nil || !errors.Is(err, os.ErrNotExist) || os.Geteuid() != 0 {
		return err
	}
	dir, err := os.MkdirTemp("", "fusectl-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := unix.Mount("fusectl", dir, "fusectl", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount fusectl: %w", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	err = os.WriteFile(filepath.Join(dir, name), []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // gone by itself
	}
	return err
}
