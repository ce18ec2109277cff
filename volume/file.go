package volume

import (
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// file is a descriptor that closes with its last holder.
type file struct {
	fd      int
	holders atomic.Int32
}

func newFile(fd int) *file {
	f := &file{fd: fd}
	f.holders.Store(1)
	return f
}

func (f *file) hold() *file {
	f.holders.Add(1)
	return f
}

func (f *file) drop() {
	if f.holders.Add(-1) == 0 {
		unix.Close(f.fd)
	}
}

// procPath names what a descriptor refers to, for the system calls that take no
// O_PATH descriptor. The kernel resolves it to the object itself, also where
// that is a symbolic link or has no name any more (proc_pid_fd(5)).
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// maxName is NAME_MAX.
const maxName = 255

// checkName refuses what is not one component of a path.
func checkName(name []byte) (string, error) {
	if len(name) > maxName {
		return "", syscall.ENAMETOOLONG
	}
	s := string(name)
	if s == "" || s == "." || s == ".." {
		return "", syscall.EINVAL
	}
	for i := range len(s) {
		if s[i] == '/' || s[i] == 0 {
			return "", syscall.EINVAL
		}
	}
	return s, nil
}

// resolveFlags keep openat2(2) inside of the directory and away from links.
const resolveFlags = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openBeneath opens one component below a directory and follows no link; with
// O_PATH a link itself is opened.
func openBeneath(dir int, name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Mode:    uint64(mode),
		Resolve: resolveFlags,
	}
	for range 64 {
		fd, err := unix.Openat2(dir, name, &how)
		switch err {
		case nil:
			return fd, nil
		case unix.EAGAIN, unix.EINTR: // a rename elsewhere disturbed the walk: openat2(2)
			continue
		case unix.ENOSYS, unix.EPERM:
			// Old kernel, or a seccomp profile that does not know openat2. One
			// component without a slash can't leave the directory either way.
			return unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
		}
		return -1, err
	}
	return -1, unix.EAGAIN
}

// reopen opens the regular file or directory that fd refers to. The caller
// checked its type: opening a FIFO would block, a device would act.
func reopen(fd, flags int) (int, error) {
	for {
		n, err := unix.Open(procPath(fd), flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != unix.EINTR {
			return n, err
		}
	}
}
