package oci

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
)

// maxUserFile bounds what is read of a box's passwd and group files, which are
// the box's to write.
const maxUserFile = 4 << 20

// User is who a process in a box runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32
	Home     string
}

// LookupUser finds a user (name or uid, with :group or :gid; empty is root) in
// the passwd and group files of a box. root is an open directory, the box's root;
// no link in the box leads out of it.
func LookupUser(root *os.File, name string) (User, error) {
	passwd, err := readIn(root, "etc/passwd")
	if err != nil {
		return User{}, err
	}
	group, err := readIn(root, "etc/group")
	if err != nil {
		return User{}, err
	}
	u, err := user.GetExecUser(name, &user.ExecUser{Home: "/"}, strings.NewReader(passwd), strings.NewReader(group))
	if err != nil {
		return User{}, core.Invalid("user %q: %s", name, err)
	}
	found := User{UID: uint32(u.Uid), GID: uint32(u.Gid), Home: u.Home}
	if found.Home == "" {
		found.Home = "/"
	}
	for _, g := range u.Sgids {
		found.Groups = append(found.Groups, uint32(g))
	}
	return found, nil
}

// readIn reads a regular file of a box; an absent one is empty.
func readIn(root *os.File, name string) (string, error) {
	f, err := OpenIn(root, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open %s in the box: %w", name, err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxUserFile))
	return string(data), err
}

// OpenIn opens a path as a process of the box would see it: the kernel resolves
// every link within root. The error is an errno.
func OpenIn(root *os.File, name string, flags int) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 8 { // openat2(2): EAGAIN means that something moved meanwhile
		fd, err := unix.Openat2(int(root.Fd()), name, how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			return nil, err
		}
	}
	return nil, unix.EAGAIN
}

// MkdirIn makes a directory of the box with missing parents; those it makes
// belong to u.
func MkdirIn(root *os.File, name string, u User) error {
	at := "."
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		parent, err := OpenIn(root, at, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("directory %s in the box: %w", at, err)
		}
		at += "/" + part
		err = mkdirAt(root, parent, at, part, u)
		parent.Close()
		if err != nil {
			return fmt.Errorf("directory %s in the box: %w", at, err)
		}
	}
	return nil
}

func mkdirAt(root, parent *os.File, at, part string, u User) error {
	if f, err := OpenIn(root, at, unix.O_PATH|unix.O_DIRECTORY); err == nil {
		return f.Close()
	} else if err != unix.ENOENT {
		return err
	}
	if err := unix.Mkdirat(int(parent.Fd()), part, 0o755); err != nil {
		return err
	}
	return unix.Fchownat(int(parent.Fd()), part, int(u.UID), int(u.GID), unix.AT_SYMLINK_NOFOLLOW)
}
