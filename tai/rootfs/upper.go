package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// opaque is the attribute of a directory that hides the lower one of its name.
const opaque = "trusted.overlay.opaque"

// errHidden ends the way down to a path that the upper layer hides already.
var errHidden = errors.New("hidden by the box's own files")

// applyMask hides a path of lower in upper. What the box has made there itself
// stays, since it hides the lower file too. No box may run on upper meanwhile.
func applyMask(upper, lower string, m Mask) error {
	rel, err := filepath.Rel(lower, m.Path)
	if err != nil {
		return err
	}
	err = copyParents(upper, lower, path.Dir(rel))
	if errors.Is(err, errHidden) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hide %s: %w", m.Path, err)
	}
	target := filepath.Join(upper, rel)
	if m.Dir {
		err = makeOpaque(target, filepath.Join(lower, rel), m.Mode)
	} else {
		err = unix.Mknod(target, unix.S_IFCHR, 0)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("hide %s: %w", m.Path, err)
	}
	return nil
}

func makeOpaque(target, lower string, mode uint32) error {
	st, err := os.Lstat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := copyDir(target, lower); err != nil {
			return err
		}
		if err := unix.Chmod(target, mode); err != nil {
			return err
		}
	case err != nil:
		return err
	case !st.IsDir():
		return nil
	}
	return unix.Lsetxattr(target, opaque, []byte("y"), 0)
}

// copyParents makes the directories of rel in upper as they are in lower.
func copyParents(upper, lower, rel string) error {
	at := "."
	for _, name := range split(rel) {
		at = filepath.Join(at, name)
		st, err := os.Lstat(filepath.Join(upper, at))
		if err == nil && !st.IsDir() {
			return errHidden
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := copyDir(filepath.Join(upper, at), filepath.Join(lower, at)); err != nil {
			return err
		}
	}
	return nil
}

// copyDir makes a directory with the mode and owner of another one.
func copyDir(target, from string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: from, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return errHidden
	}
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	if err := os.Lchown(target, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Chmod(target, st.Mode&0o7777)
}

// writeFresh gives the box a file of its own in place of the machine's, unless
// it has one.
func writeFresh(upper, lower, p, content string) error {
	err := copyParents(upper, lower, path.Dir(p))
	if errors.Is(err, errHidden) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(upper, p), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := f.WriteString(content); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
