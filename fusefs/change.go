package fusefs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
	"github.com/yaoapp/sbgw/volume"
)

// Mknod makes a regular file, FIFO or socket; devices are EPERM.
func (f *FS) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if t := in.Mode & syscall.S_IFMT; t == syscall.S_IFCHR || t == syscall.S_IFBLK {
		return fuse.EPERM
	}
	r := f.request(cancel, &in.InHeader, in.Umask)
	return f.status("mknod", f.makeEntry(r, in.NodeId, name, out, func(parent []byte) *volumev1.Request {
		return &volumev1.Request{Op: &volumev1.Request_MakeNode{MakeNode: &volumev1.MakeNode{
			Parent: parent, Name: []byte(name), Mode: in.Mode}}}
	}))
}

// Mkdir makes a directory.
func (f *FS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	r := f.request(cancel, &in.InHeader, in.Umask)
	return f.status("mkdir", f.makeEntry(r, in.NodeId, name, out, func(parent []byte) *volumev1.Request {
		return &volumev1.Request{Op: &volumev1.Request_MakeNode{MakeNode: &volumev1.MakeNode{
			Parent: parent, Name: []byte(name), Mode: in.Mode&^syscall.S_IFMT | syscall.S_IFDIR}}}
	}))
}

// Symlink makes a symbolic link; where it may point is READLINK's matter.
func (f *FS) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	r := f.request(cancel, h, 0)
	return f.status("symlink", f.makeEntry(r, h.NodeId, name, out, func(parent []byte) *volumev1.Request {
		return &volumev1.Request{Op: &volumev1.Request_Symlink{Symlink: &volumev1.Symlink{
			Parent: parent, Name: []byte(name), Target: []byte(target)}}}
	}))
}

// Link gives an object another name.
func (f *FS) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	r := f.request(cancel, &in.InHeader, 0)
	n, err := f.node(in.Oldnodeid)
	if err != nil {
		return f.status("link", err)
	}
	var herr error
	err = f.makeEntry(r, in.NodeId, name, out, func(parent []byte) *volumev1.Request {
		var h []byte
		h, herr = f.handle(r, n)
		return &volumev1.Request{Op: &volumev1.Request_Link{Link: &volumev1.Link{
			Handle: h, Parent: parent, Name: []byte(name)}}}
	})
	if herr != nil {
		err = herr
	}
	return f.status("link", err)
}

// makeEntry makes a name by the request that build returns for the directory's
// handle, and tells the kernel.
func (f *FS) makeEntry(r request, parentID uint64, name string, out *fuse.EntryOut, build func([]byte) *volumev1.Request) error {
	parent, err := f.node(parentID)
	if err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	a, err := f.op(r, false, func() (*volumev1.Request, error) {
		h, err := f.handle(r, parent)
		if err != nil {
			return nil, err
		}
		return build(h), nil
	})
	if err != nil {
		return err
	}
	res := a.GetChange()
	if res.GetObject() == nil {
		return syscall.EIO
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noteLocked(res.GetParent(), a)
	f.noteLocked(res.GetVictim(), a)
	f.entryLocked(parent, name, res.GetObject(), a, out)
	return nil
}

// Unlink removes a name of a file.
func (f *FS) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.status("unlink", f.unlink(f.request(cancel, h, 0), h.NodeId, name, false))
}

// Rmdir removes an empty directory.
func (f *FS) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.status("rmdir", f.unlink(f.request(cancel, h, 0), h.NodeId, name, true))
}

func (f *FS) unlink(r request, parentID uint64, name string, directory bool) error {
	parent, err := f.node(parentID)
	if err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	a, err := f.op(r, false, func() (*volumev1.Request, error) {
		h, err := f.handle(r, parent)
		return &volumev1.Request{Op: &volumev1.Request_Unlink{Unlink: &volumev1.Unlink{
			Parent: h, Name: []byte(name), Directory: directory}}}, err
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unnameLocked(parent, name)
	for _, o := range volume.ObjectsIn(a.Reply) {
		f.noteLocked(o, a)
	}
	return nil
}

// Rename moves a name, with the flags of renameat2(2) but for whiteouts.
func (f *FS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	return f.status("rename", f.rename(f.request(cancel, &in.InHeader, 0), in, oldName, newName))
}

func (f *FS) rename(r request, in *fuse.RenameIn, oldName, newName string) error {
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return syscall.EINVAL
	}
	from, err := f.node(in.NodeId)
	if err != nil {
		return err
	}
	to, err := f.node(in.Newdir)
	if err != nil {
		return err
	}
	if err := checkName(newName); err != nil {
		return err
	}
	a, err := f.op(r, false, func() (*volumev1.Request, error) {
		q := &volumev1.Rename{Name: []byte(oldName), NewName: []byte(newName), Flags: in.Flags}
		var err error
		if q.Parent, err = f.handle(r, from); err != nil {
			return nil, err
		}
		q.NewParent, err = f.handle(r, to)
		return &volumev1.Request{Op: &volumev1.Request_Rename{Rename: q}}, err
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	moved, replaced := from.children[oldName], to.children[newName]
	exchange := in.Flags&unix.RENAME_EXCHANGE != 0
	if moved != replaced || moved == nil { // two names of one object: nothing moves
		f.moveLocked(from, oldName, to, newName, exchange, a)
	}
	for _, o := range volume.ObjectsIn(a.Reply) {
		f.noteLocked(o, a)
	}
	return nil
}

// moveLocked follows a rename in the tables; the kernel moves its own entries.
func (f *FS) moveLocked(from *node, oldName string, to *node, newName string, exchange bool, a answer) {
	moved, replaced := from.children[oldName], to.children[newName]
	for _, n := range []*node{moved, replaced} {
		if n != nil {
			n.refs++ // not dropped between two names
		}
	}
	f.unnameLocked(to, newName)
	f.unnameLocked(from, oldName)
	if moved != nil {
		moved.dropAliasLocked(alias{from, oldName})
		f.nameLocked(to, newName, moved, a)
	}
	if replaced != nil {
		replaced.dropAliasLocked(alias{to, newName})
		if exchange {
			f.nameLocked(from, oldName, replaced, a)
		}
	}
	for _, n := range []*node{moved, replaced} {
		if n != nil {
			n.refs--
			f.dropLocked(n)
		}
	}
}
