package volume

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
	"github.com/yaoapp/sbgw/workspace"
)

const (
	// maxLinks is how many links one path may go through, as in the kernel.
	maxLinks = 40
	// namesPerWalk is how many names one request looks up.
	namesPerWalk = 16
	// forgetBatch is how many references are given back at once.
	forgetBatch = 128
	// pathTries bounds how often a path is walked again when an object on it was
	// replaced meanwhile, as the kernel does.
	pathTries = 4
)

// volumeFS is a Client seen by paths.
type volumeFS struct {
	c *Client

	mu   sync.Mutex
	used []*volumev1.Object // references to give back
}

var _ workspace.FS = (*volumeFS)(nil)

// NewFS returns the volume of a client as files by path. Closing it closes the
// client. New objects belong to the owner of the volume's root.
func NewFS(c *Client) workspace.FS { return &volumeFS{c: c} }

// Close implements workspace.FS.
func (f *volumeFS) Close() error { return f.c.Close() }

// visit is one operation of a volumeFS. It keeps the references that its replies
// bring until its end.
type visit struct {
	f    *volumeFS
	used []*volumev1.Object
}

// visit runs one operation and names it in its error. If again is set, it is
// tried again where the object that a path meant is gone, or the session is.
func (f *volumeFS) visit(op, name string, again bool, run func(*visit) error) error {
	if !fs.ValidPath(name) {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	var err error
	for range pathTries {
		v := &visit{f: f}
		err = run(v)
		v.end()
		if !again || !errors.Is(err, syscall.ESTALE) && !errors.Is(err, ErrSessionLost) {
			break
		}
	}
	if errors.Is(err, syscall.ESTALE) {
		err = syscall.ENOENT
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (v *visit) end() {
	f := v.f
	f.mu.Lock()
	f.used = append(f.used, v.used...)
	var batch []*volumev1.Object
	if len(f.used) >= forgetBatch {
		batch, f.used = f.used, nil
	}
	f.mu.Unlock()
	f.c.Forget(context.Background(), batch...)
}

// do carries out a request.
func (v *visit) do(r *volumev1.Request) (*volumev1.Reply, error) {
	r.Caller = &volumev1.Caller{Squash: true}
	reply, err := v.f.c.Do(context.Background(), r)
	v.used = append(v.used, ObjectsIn(reply)...)
	return reply, err
}

// found is what a path means: an object, or, where only the last name is
// missing, the directory that it could be made in.
type found struct {
	object *volumev1.Object // nil: missing
	parent *volumev1.Object // nil for the root
	name   string
}

func kindOfObject(o *volumev1.Object) uint32 { return o.GetAttr().GetMode() & syscall.S_IFMT }

func isDir(o *volumev1.Object) bool  { return kindOfObject(o) == syscall.S_IFDIR }
func isLink(o *volumev1.Object) bool { return kindOfObject(o) == syscall.S_IFLNK }

// resolve walks a path. Links on the way are followed, the last one only if
// follow is set, and none out of the volume.
func (v *visit) resolve(name string, follow bool) (found, error) {
	dirs := []*volumev1.Object{v.f.c.Root()}
	rest := components(name)
	for links := 0; ; {
		for len(rest) > 0 && rest[0] == ".." {
			if len(dirs) == 1 {
				return found{}, syscall.EPERM // a link out of the volume
			}
			dirs, rest = dirs[:len(dirs)-1], rest[1:]
		}
		if len(rest) == 0 {
			return v.refreshed(dirs)
		}
		steps, err := v.walk(dirs[len(dirs)-1], rest)
		for _, o := range steps {
			if isDir(o) {
				dirs, rest = append(dirs, o), rest[1:]
			}
		}
		if len(rest) == 0 {
			continue
		}
		at := found{parent: dirs[len(dirs)-1], name: rest[0]}
		var last *volumev1.Object
		if n := len(steps); n > 0 && !isDir(steps[n-1]) {
			last = steps[n-1]
		}
		switch {
		case last != nil && isLink(last) && (follow || len(rest) > 1):
			if links++; links > maxLinks {
				return found{}, syscall.ELOOP
			}
			target, err := v.linkTarget(last)
			if err != nil {
				return found{}, err
			}
			rest = slices.Concat(target, rest[1:])
		case last != nil && len(rest) == 1:
			at.object = last
			return at, nil
		case last != nil:
			return found{}, syscall.ENOTDIR
		case errors.Is(err, syscall.ENOENT) && len(rest) == 1:
			return at, nil
		case err != nil:
			return found{}, err
		}
	}
}

// refreshed is the result of a walk that ended at a directory.
func (v *visit) refreshed(dirs []*volumev1.Object) (found, error) {
	if len(dirs) > 1 {
		return found{object: dirs[len(dirs)-1], parent: dirs[len(dirs)-2]}, nil
	}
	r, err := v.do(&volumev1.Request{Op: &volumev1.Request_GetAttr{GetAttr: &volumev1.GetAttr{
		Handle: dirs[0].GetHandle(),
	}}})
	return found{object: r.GetObject()}, err
}

// components splits a path, without those that mean nothing.
func components(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
}

// walk looks up the names before the next "..", as far as it comes.
func (v *visit) walk(dir *volumev1.Object, names []string) ([]*volumev1.Object, error) {
	w := &volumev1.Walk{Handle: dir.GetHandle()}
	for _, n := range names {
		if n == ".." || len(w.Names) == namesPerWalk {
			break
		}
		w.Names = append(w.Names, []byte(n))
	}
	r, err := v.do(&volumev1.Request{Op: &volumev1.Request_Walk{Walk: w}})
	if err != nil {
		return nil, err
	}
	steps := r.GetWalk().GetSteps()
	if errno := r.GetWalk().GetErrno(); errno != 0 {
		err = syscall.Errno(errno)
	} else if len(steps) == 0 || len(steps) > len(w.Names) {
		err = syscall.EIO
	}
	return steps, err
}

func (v *visit) linkTarget(link *volumev1.Object) ([]string, error) {
	r, err := v.do(&volumev1.Request{Op: &volumev1.Request_ReadLink{ReadLink: &volumev1.ReadLink{
		Handle: link.GetHandle(),
	}}})
	if err != nil {
		return nil, err
	}
	target := string(r.GetData().GetData())
	if target == "" || strings.HasPrefix(target, "/") {
		return nil, syscall.EPERM // out of the volume
	}
	return components(target), nil
}

// existing is resolve where the object has to be there.
func (v *visit) existing(name string, follow bool) (found, error) {
	at, err := v.resolve(name, follow)
	if err == nil && at.object == nil {
		err = syscall.ENOENT
	}
	return at, err
}
