package volume

import (
	"syscall"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// Open flags on the wire are those of Linux on amd64.
const (
	wireAccess    = 0o3
	wireCreate    = 0o100
	wireExcl      = 0o200
	wireTrunc     = 0o1000
	wireDSync     = 0o10000
	wireSync      = 0o4010000
	wireDirectory = 0o200000
	wireNoFollow  = 0o400000
)

// localFlags are the flags that a descriptor of ours is opened with. O_APPEND is
// not among them, for each write says whether it appends; nor what only matters
// to the caller's own kernel.
func localFlags(wire uint32) int {
	flags := int(wire & wireAccess)
	if wire&wireTrunc != 0 {
		flags |= unix.O_TRUNC
	}
	switch {
	case wire&wireSync == wireSync:
		flags |= unix.O_SYNC
	case wire&wireDSync != 0:
		flags |= unix.O_DSYNC
	}
	return flags
}

// createTries bounds the race between a name that is not there, then there.
const createTries = 16

func (o *op) openAt(r *volumev1.OpenAt) error {
	switch {
	case r.GetFlags()&wireAccess == wireAccess:
		return syscall.EINVAL
	case r.GetTmpfile():
		return o.openTemp(r)
	case len(r.GetName()) == 0:
		return o.openHandle(r)
	}
	name, err := checkName(r.GetName())
	if err != nil {
		return err
	}
	dir, dirFD, err := o.directory(r.GetParent())
	if err != nil {
		return err
	}
	create := r.GetFlags()&wireCreate != 0
	for range createTries {
		e, err := o.lookup(dir, dirFD, name)
		if err == nil {
			return o.openFound(e, r)
		}
		if err != unix.ENOENT || !create || len(r.GetHandle()) > 0 {
			return err
		}
		if err = o.openNew(dir, dirFD, name, r); err != unix.EEXIST {
			return err
		}
		if r.GetFlags()&wireExcl != 0 {
			return err
		}
	}
	return syscall.EAGAIN
}

// openFound opens what a name means.
func (o *op) openFound(e entry, r *volumev1.OpenAt) error {
	if len(r.GetHandle()) > 0 && string(e.object.handle[:]) != string(r.GetHandle()) {
		return syscall.ESTALE
	}
	if r.GetFlags()&wireCreate != 0 {
		if r.GetFlags()&wireExcl != 0 {
			return syscall.EEXIST
		}
		if e.object.isDir() {
			return syscall.EISDIR
		}
	}
	return o.answerOpen(e, r)
}

func (o *op) openHandle(r *volumev1.OpenAt) error {
	obj, fd, st, err := o.object(r.GetHandle())
	if err != nil {
		return err
	}
	return o.answerOpen(entry{obj, fd, st}, r)
}

func (o *op) answerOpen(e entry, r *volumev1.OpenAt) error {
	h, err := o.openExisting(e, r.GetFlags())
	if err != nil {
		return err
	}
	if r.GetFlags()&wireTrunc != 0 {
		if o.r.GetCaller().GetUid() != 0 {
			dropSetID(h.file.fd)
		}
		e.fd = h.file.fd
	}
	obj := o.giveFD(e.object, e.fd)
	o.reply.Result = &volumev1.Reply_Open{Open: &volumev1.OpenResult{Open: h.id, Object: obj}}
	return nil
}

// openExisting opens a regular file or a directory.
func (o *op) openExisting(e entry, wire uint32) (*open, error) {
	flags := localFlags(wire)
	switch {
	case e.object.isDir():
		if flags&(unix.O_ACCMODE|unix.O_TRUNC) != 0 {
			return nil, syscall.EISDIR
		}
		flags |= unix.O_DIRECTORY
		o.v.watch.ensure(e.object, e.fd)
	case e.object.kind == unix.S_IFLNK:
		return nil, syscall.ELOOP
	case wire&wireDirectory != 0:
		return nil, syscall.ENOTDIR
	case e.object.kind != unix.S_IFREG:
		return nil, syscall.ENXIO
	}
	fd, err := reopen(e.fd, flags)
	if err != nil {
		return nil, err
	}
	return o.s.addOpen(e.object, fd, flags&unix.O_ACCMODE)
}

// openNew makes a file, EEXIST if the name is there by now.
func (o *op) openNew(dir *object, dirFD int, name string, r *volumev1.OpenAt) error {
	if r.GetFlags()&wireDirectory != 0 {
		return syscall.EINVAL
	}
	m := o.maker(dirFD, r.GetMode())
	fd, err := openBeneath(dirFD, name, localFlags(r.GetFlags())|unix.O_CREAT|unix.O_EXCL, m.mode)
	if err != nil {
		return err
	}
	return o.answerNew(dir, dirFD, name, fd, m, r)
}

// openTemp makes a file without a name.
func (o *op) openTemp(r *volumev1.OpenAt) error {
	dir, dirFD, err := o.directory(r.GetParent())
	if err != nil {
		return err
	}
	flags := localFlags(r.GetFlags())
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return syscall.EINVAL
	}
	if r.GetFlags()&wireExcl != 0 {
		flags |= unix.O_EXCL
	}
	m := o.maker(dirFD, r.GetMode())
	fd, err := unix.Openat(dirFD, ".", flags|unix.O_TMPFILE|unix.O_CLOEXEC, m.mode)
	if err != nil {
		return err
	}
	return o.answerNew(dir, dirFD, "", fd, m, r)
}

// answerNew finishes a file just made and opened by fd, which it takes.
func (o *op) answerNew(dir *object, dirFD int, name string, fd int, m maker, r *volumev1.OpenAt) error {
	e, err := o.enterNew(dir, name, fd, m)
	if err != nil {
		unix.Close(fd)
		return err
	}
	h, err := o.s.addOpen(e.object, fd, int(r.GetFlags()&wireAccess))
	if err != nil {
		return err
	}
	o.reply.Result = &volumev1.Reply_Open{Open: &volumev1.OpenResult{
		Open: h.id, Created: true, Object: o.give(e), Parent: o.giveFD(dir, dirFD),
	}}
	return nil
}

// enterNew takes a new file in, by a descriptor that does not count as open. One
// without a name is not in the directory.
func (o *op) enterNew(dir *object, name string, fd int, m maker) (entry, error) {
	if err := m.finish(fd); err != nil {
		return entry{}, err
	}
	path, err := unix.Open(procPath(fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return entry{}, err
	}
	if name == "" {
		dir = nil
	}
	return o.enter(newFile(path), dir, name)
}
