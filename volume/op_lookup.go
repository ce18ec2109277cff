package volume

import (
	"syscall"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	// maxWalk bounds the names of one Walk.
	maxWalk = 64
	// maxDirBytes bounds a page of a directory.
	maxDirBytes = 256 << 10
	// direntHeader is the part of struct linux_dirent64 before the name.
	direntHeader = 19
	// objectSize is about what an Object takes in a message.
	objectSize = 160
)

func (o *op) walk(r *volumev1.Walk) error {
	if len(r.GetNames()) > maxWalk {
		return syscall.E2BIG
	}
	dir, fd, err := o.directory(r.GetHandle())
	if err != nil {
		return err
	}
	out := &volumev1.WalkResult{}
	o.reply.Result = &volumev1.Reply_Walk{Walk: out}
	for i, name := range r.GetNames() {
		e, err := o.step(dir, fd, name)
		if err != nil {
			out.Errno = int32(errnoOf(err))
			return nil
		}
		out.Steps = append(out.Steps, o.give(e))
		if i == len(r.GetNames())-1 {
			return nil
		}
		switch e.object.kind {
		case unix.S_IFDIR:
			dir, fd = e.object, e.fd
		case unix.S_IFLNK:
			out.Errno = int32(syscall.ELOOP)
			return nil
		default:
			out.Errno = int32(syscall.ENOTDIR)
			return nil
		}
	}
	return nil
}

func (o *op) step(dir *object, fd int, name []byte) (entry, error) {
	s, err := checkName(name)
	if err != nil {
		return entry{}, err
	}
	return o.lookup(dir, fd, s)
}

func (o *op) getAttr(r *volumev1.GetAttr) error {
	obj, fd, st, err := o.target(r.GetOpen(), r.GetHandle())
	if err != nil {
		return err
	}
	if o.watchAgain(obj, fd) {
		if st, err = statFD(fd); err != nil {
			return err
		}
	}
	o.reply.Result = &volumev1.Reply_Object{Object: o.s.give(obj, st)}
	return nil
}

// watchAgain sees to it that changes of an object make events, and reports
// whether they did not before.
func (o *op) watchAgain(obj *object, fd int) bool {
	if obj.isDir() {
		return o.v.watch.ensure(obj, fd)
	}
	o.v.mu.Lock()
	parent := obj.parent
	o.v.mu.Unlock()
	if parent == nil || o.v.watch.covers(parent) {
		return false
	}
	f, err := o.v.pin(parent)
	if err != nil {
		return false
	}
	return o.v.watch.ensure(parent, o.keep(f))
}

// target is what a request names by open id, or else by handle.
func (o *op) target(id uint64, h []byte) (*object, int, *unix.Statx_t, error) {
	if id == 0 {
		return o.object(h)
	}
	f, err := o.open(id)
	if err != nil {
		return nil, -1, nil, err
	}
	st, err := statFD(f.file.fd)
	return f.object, f.file.fd, st, err
}

func (o *op) readLink(r *volumev1.ReadLink) error {
	_, fd, st, err := o.object(r.GetHandle())
	if err != nil {
		return err
	}
	if uint32(st.Mode)&unix.S_IFMT != unix.S_IFLNK {
		return syscall.EINVAL
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Data{Data: &volumev1.DataResult{Data: buf[:n]}}
	return nil
}

// readDir lists from a cookie of the kernel's, which stays valid over changes of
// the directory as far as the file system's own do (getdents(2), d_off).
func (o *op) readDir(r *volumev1.ReadDir) error {
	f, err := o.open(r.GetOpen())
	if err != nil {
		return err
	}
	if !f.object.isDir() {
		return syscall.ENOTDIR
	}
	if r.GetCookie() > 1<<63-1 {
		return syscall.EINVAL
	}
	o.v.watch.ensure(f.object, f.file.fd)
	out := &volumev1.ReadDirResult{}
	o.reply.Result = &volumev1.Reply_ReadDir{ReadDir: out}
	budget := int(min(max(r.GetMaxBytes(), 512), maxDirBytes))
	return f.list(int64(r.GetCookie()), func(d dirent) bool {
		if d.name == "." || d.name == ".." {
			return true
		}
		size := direntHeader + len(d.name)
		if r.GetPlus() {
			size += objectSize
		}
		if budget -= size; budget < 0 && len(out.Entries) > 0 {
			return false
		}
		e := &volumev1.DirEntry{Name: []byte(d.name), Ino: d.ino, Type: d.kind, Cookie: uint64(d.cookie)}
		if r.GetPlus() {
			e.Object = o.entryObject(f, d.name)
		}
		out.Entries = append(out.Entries, e)
		return true
	}, &out.End)
}

// entryObject is the object of a directory's entry, or nil where it is gone. It
// keeps no descriptor, for there may be thousands.
func (o *op) entryObject(dir *open, name string) *volumev1.Object {
	fd, err := openBeneath(dir.file.fd, name, unix.O_PATH, 0)
	if err != nil {
		return nil
	}
	f := newFile(fd)
	defer f.drop()
	obj, st, err := o.v.enter(f, dir.object, name)
	if obj != nil {
		defer o.v.release(obj)
	}
	if err != nil {
		return nil
	}
	return o.s.give(obj, st)
}

func (o *op) reclaim(r *volumev1.Reclaim) error {
	e, err := o.reclaimed(r)
	if err != nil {
		return err
	}
	if e.object.id != identityOf(r.GetIdentity()) {
		return syscall.ESTALE
	}
	out := &volumev1.ReclaimResult{}
	if r.GetOpen() {
		f, err := o.openExisting(e, r.GetFlags()&^(wireCreate|wireExcl|wireTrunc))
		if err != nil {
			return err
		}
		out.Open = f.id
	}
	out.Object = o.give(e)
	o.reply.Result = &volumev1.Reply_Reclaim{Reclaim: out}
	return nil
}

func (o *op) reclaimed(r *volumev1.Reclaim) (entry, error) {
	if len(r.GetParent()) == 0 {
		st, err := statFD(o.v.dir.fd)
		return entry{object: o.v.root, fd: o.v.dir.fd, st: st}, err
	}
	dir, fd, err := o.directory(r.GetParent())
	if err != nil {
		return entry{}, err
	}
	e, err := o.step(dir, fd, r.GetName())
	if err == unix.ENOENT {
		err = syscall.ESTALE
	}
	return e, err
}
