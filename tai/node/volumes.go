package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/tai/oci"
)

// maxVolumeName is the longest directory name there is.
const maxVolumeName = 255

// volumeName returns a session's directory name: itself, or, for the two-part
// form user/chat, with the slash escaped.
func volumeName(s core.VolumeSession) (string, error) {
	parts := strings.Split(string(s), "/")
	for _, p := range parts {
		if p == "" || p[0] == '.' || strings.ContainsRune(p, 0) || len(parts) > 2 {
			return "", core.Invalid("volume %q: not a name, or two with a slash between", clip(string(s)))
		}
	}
	name := url.PathEscape(string(s))
	if len(name) > maxVolumeName {
		return "", core.Invalid("volume %q: the name is too long", clip(string(s)))
	}
	return name, nil
}

// volumeDir returns the directory of a volume that exists.
func volumeDir(state string, s core.VolumeSession) (string, error) {
	name, err := volumeName(s)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(state, "volumes", name)
	st, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: volume %s", core.ErrNotFound, s)
	}
	if err != nil {
		return "", err
	}
	if !st.IsDir() {
		return "", fmt.Errorf("volume %s: %s is not a directory", s, dir)
	}
	return dir, nil
}

// OpenVolume is of core.VolumeOpener.
func (r *Runtime) OpenVolume(_ context.Context, s core.VolumeSession, create bool) (core.Endpoint, error) {
	name, err := volumeName(s)
	if err != nil {
		return core.Endpoint{}, err
	}
	if create {
		err := os.Mkdir(filepath.Join(r.state, "volumes", name), 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return core.Endpoint{}, fmt.Errorf("make volume %s: %w", s, err)
		}
	}
	dir, err := volumeDir(r.state, s)
	if err != nil {
		return core.Endpoint{}, err
	}
	instance, err := instanceOf(dir)
	if err != nil {
		return core.Endpoint{}, err
	}
	return core.Endpoint{Kind: core.EndpointUnix, Address: r.socket, Session: s, Instance: instance}, nil
}

// instanceOf names a directory's identity: a deleted one never comes back with it.
func instanceOf(dir string) (string, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st)
	if err != nil {
		return "", &fs.PathError{Op: "statx", Path: dir, Err: err}
	}
	return fmt.Sprintf("%x-%x-%x.%x", unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}

// RemoveVolume is of core.VolumeRemover.
func (r *Runtime) RemoveVolume(_ context.Context, s core.VolumeSession) error {
	r.mu.Lock()
	for id, b := range r.boxes {
		for _, m := range b.Spec.Mounts {
			if m.Session == s {
				r.mu.Unlock()
				return fmt.Errorf("%w: volume %s is bound to box %s", core.ErrConflict, s, id)
			}
		}
	}
	r.mu.Unlock()
	dir, err := volumeDir(r.state, s)
	if errors.Is(err, core.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.discard(dir); err != nil {
		return fmt.Errorf("remove volume %s: %w", s, err)
	}
	return nil
}

// binds returns a box's volumes as directories, outer targets first.
func (r *Runtime) binds(s core.BoxSpec) ([]oci.Bind, error) {
	var binds []oci.Bind
	for _, m := range s.Mounts {
		dir, err := volumeDir(r.state, m.Session)
		if err != nil {
			return nil, err
		}
		binds = append(binds, oci.Bind{Source: dir, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	slices.SortStableFunc(binds, func(a, b oci.Bind) int { return cmp.Compare(len(a.Target), len(b.Target)) })
	return binds, nil
}
