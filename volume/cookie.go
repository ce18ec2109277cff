package volume

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// cookiePrefix begins the names of the directories in which barriers make files.
const cookiePrefix = "sbgw-cookies-"

// cookieDir is such a directory. It is locked for as long as its process lives,
// by which those that a killed one left behind are known.
type cookieDir struct {
	path string
	lock *file
}

func newCookieDir() (cookieDir, error) {
	for range 3 {
		path, err := os.MkdirTemp("", cookiePrefix)
		if err != nil {
			return cookieDir{}, err
		}
		lock, err := lockDir(path)
		if err != nil { // another process took it for one left behind
			continue
		}
		if _, err := os.Stat(path); err != nil {
			lock.drop()
			continue
		}
		return cookieDir{path, lock}, nil
	}
	return cookieDir{}, fmt.Errorf("make a directory for cookies: %w", unix.EBUSY)
}

func (d cookieDir) remove() {
	os.RemoveAll(d.path)
	d.lock.drop()
}

// lockDir locks a directory of our own user's.
func lockDir(path string) (*file, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := newFile(fd)
	st, err := statFD(fd)
	if err == nil && int(st.Uid) != unix.Geteuid() {
		err = unix.EPERM
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.drop()
		return nil, err
	}
	return f, nil
}

// sweepCookieDirs removes what killed processes left behind.
func sweepCookieDirs() {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), cookiePrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range left {
		if lock, err := lockDir(path); err == nil {
			cookieDir{path, lock}.remove()
		}
	}
}
