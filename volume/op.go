package volume

import (
	"context"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// op is one request that runs. What it holds, it gives back when done.
type op struct {
	s     *session
	v     *volume
	r     *volumev1.Request
	reply *volumev1.Reply

	objects []*object
	files   []*file
	held    []*open
}

// errnoOf is what goes on the wire for an error.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != 0 {
		return errno
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return syscall.EINTR
	}
	return syscall.EIO
}

func (o *op) done() {
	for _, f := range o.files {
		f.drop()
	}
	for _, h := range o.held {
		h.file.drop()
	}
	for _, obj := range o.objects {
		o.v.release(obj)
	}
}

// run dispatches. What it returns beside an error stays in the reply.
func (o *op) run() error {
	switch r := o.r.GetOp().(type) {
	case *volumev1.Request_Walk:
		return o.walk(r.Walk)
	case *volumev1.Request_GetAttr:
		return o.getAttr(r.GetAttr)
	case *volumev1.Request_SetAttr:
		return o.setAttr(r.SetAttr)
	case *volumev1.Request_ReadDir:
		return o.readDir(r.ReadDir)
	case *volumev1.Request_OpenAt:
		return o.openAt(r.OpenAt)
	case *volumev1.Request_Read:
		return o.read(r.Read)
	case *volumev1.Request_Write:
		return o.write(r.Write)
	case *volumev1.Request_Commit:
		return o.commit(r.Commit)
	case *volumev1.Request_Release:
		return o.release(r.Release)
	case *volumev1.Request_Forget:
		return o.forget(r.Forget)
	case *volumev1.Request_MakeNode:
		return o.makeNode(r.MakeNode)
	case *volumev1.Request_Symlink:
		return o.symlink(r.Symlink)
	case *volumev1.Request_Link:
		return o.link(r.Link)
	case *volumev1.Request_Rename:
		return o.rename(r.Rename)
	case *volumev1.Request_Unlink:
		return o.unlink(r.Unlink)
	case *volumev1.Request_ReadLink:
		return o.readLink(r.ReadLink)
	case *volumev1.Request_Reclaim:
		return o.reclaim(r.Reclaim)
	}
	return o.runOther()
}

func (o *op) runOther() error {
	switch r := o.r.GetOp().(type) {
	case *volumev1.Request_Fallocate:
		return o.fallocate(r.Fallocate)
	case *volumev1.Request_Seek:
		return o.seek(r.Seek)
	case *volumev1.Request_CopyRange:
		return o.copyRange(r.CopyRange)
	case *volumev1.Request_GetXattr:
		return o.getXattr(r.GetXattr)
	case *volumev1.Request_SetXattr:
		return o.setXattr(r.SetXattr)
	case *volumev1.Request_ListXattr:
		return o.listXattr(r.ListXattr)
	case *volumev1.Request_RemoveXattr:
		return o.removeXattr(r.RemoveXattr)
	case *volumev1.Request_Lock:
		return o.lock(r.Lock)
	case *volumev1.Request_StatFs:
		return o.statFs()
	case *volumev1.Request_Barrier:
		return o.barrier()
	case *volumev1.Request_Recall, *volumev1.Request_Cancel:
		return nil // no leases yet that hold changes back; a cancel was done at once
	}
	return syscall.ENOSYS
}

// find returns the object of a handle.
func (o *op) find(h []byte) (*object, error) {
	obj, err := o.s.find(h)
	if err == nil {
		o.objects = append(o.objects, obj)
	}
	return obj, err
}

// keep has done drop the descriptor.
func (o *op) keep(f *file) int {
	o.files = append(o.files, f)
	return f.fd
}

// pin returns a descriptor of an object, usually an O_PATH one, and its status.
func (o *op) pin(obj *object) (int, *unix.Statx_t, error) {
	f, err := o.v.pin(obj)
	if err != nil {
		return -1, nil, err
	}
	fd := o.keep(f)
	st, err := statFD(fd)
	if err != nil {
		return -1, nil, err
	}
	if st.Nlink == 0 && o.v.buried(obj) {
		return -1, nil, syscall.ESTALE
	}
	return fd, st, nil
}

// object returns an object by handle with its descriptor and status.
func (o *op) object(h []byte) (*object, int, *unix.Statx_t, error) {
	obj, err := o.find(h)
	if err != nil {
		return nil, -1, nil, err
	}
	fd, st, err := o.pin(obj)
	return obj, fd, st, err
}

// directory returns a directory by handle, watched from here on.
func (o *op) directory(h []byte) (*object, int, error) {
	obj, err := o.find(h)
	if err != nil {
		return nil, -1, err
	}
	if !obj.isDir() {
		return nil, -1, syscall.ENOTDIR
	}
	f, err := o.v.pin(obj)
	if err != nil {
		return nil, -1, err
	}
	fd := o.keep(f)
	o.v.watch.ensure(obj, fd)
	return obj, fd, nil
}

// entry is an object found under a name.
type entry struct {
	object *object
	fd     int // O_PATH
	st     *unix.Statx_t
}

// lookup finds the object that a name of a watched directory means.
func (o *op) lookup(dir *object, dirFD int, name string) (entry, error) {
	fd, err := openBeneath(dirFD, name, unix.O_PATH, 0)
	if err != nil {
		return entry{}, err
	}
	return o.enter(newFile(fd), dir, name)
}

// enter takes an object in that a descriptor, which it keeps, is open on.
func (o *op) enter(f *file, dir *object, name string) (entry, error) {
	fd := o.keep(f)
	obj, st, err := o.v.enter(f, dir, name)
	if obj != nil {
		o.objects = append(o.objects, obj)
	}
	return entry{object: obj, fd: fd, st: st}, err
}

// enter returns the object that f is open on, held for the caller, with a status
// after which every change makes an event.
func (v *volume) enter(f *file, dir *object, name string) (*object, *unix.Statx_t, error) {
	st, err := statFD(f.fd)
	if err != nil {
		return nil, nil, err
	}
	obj, added, err := v.intern(f, st, dir, name)
	if err != nil {
		return nil, nil, err
	}
	if obj.isDir() && v.watch.ensure(obj, f.fd) {
		added = true
	}
	if added {
		st, err = statFD(f.fd)
	}
	return obj, st, err
}

// give makes the message of an entry.
func (o *op) give(e entry) *volumev1.Object { return o.s.give(e.object, e.st) }

// giveFD makes the message of an object as it is now.
func (o *op) giveFD(obj *object, fd int) *volumev1.Object {
	st, err := statFD(fd)
	if err != nil {
		return nil
	}
	return o.s.give(obj, st)
}

// open returns an open file by id.
func (o *op) open(id uint64) (*open, error) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	h := o.s.opens[id]
	if h == nil {
		return nil, syscall.EBADF
	}
	h.file.hold()
	o.held = append(o.held, h)
	return h, nil
}

func (o *op) statFs() error {
	st, err := o.v.statfs()
	o.reply.Result = &volumev1.Reply_StatFs{StatFs: st}
	return err
}

func (o *op) barrier() error {
	ctx, stop, err := o.s.wait(o.r.GetId())
	if err != nil {
		return err
	}
	defer stop()
	n, err := o.v.barrier(ctx)
	if err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Barrier{Barrier: &volumev1.BarrierResult{Event: n}}
	return nil
}
