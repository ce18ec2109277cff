package fusefs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// cacheTime is how long the kernel keeps names and attributes while the server's
// watch is healthy; it keeps none otherwise, and never that a name is absent.
const cacheTime = time.Second

// watched tells whether the server reports changes now.
func (f *FS) watched() bool {
	b := f.vol.Load()
	return b != nil && b.Up() && b.Hello().GetWatch() != ""
}

// Lookup finds a name. An absent one is an error and no negative entry, so the
// kernel asks again each time.
func (f *FS) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.status("lookup", f.lookup(f.request(cancel, h, 0), h.NodeId, name, out))
}

func (f *FS) lookup(r request, parentID uint64, name string, out *fuse.EntryOut) error {
	parent, err := f.node(parentID)
	if err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	o, a, err := f.find(r, parent, name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if o == nil {
		f.unnameLocked(parent, name)
		return syscall.ENOENT
	}
	f.entryLocked(parent, name, o, a, out)
	return nil
}

// entryLocked tells the kernel what a name means, which counts as a lookup.
func (f *FS) entryLocked(parent *node, name string, o *volumev1.Object, a answer, out *fuse.EntryOut) *node {
	n := f.adoptLocked(o, a)
	n.refs++
	attrTTL := f.tellLocked(n, o, a)
	out.NodeId, out.Generation = n.id, 1
	f.fill(o.GetAttr(), &out.Attr)
	out.SetAttrTimeout(attrTTL)
	if parent != nil {
		out.SetEntryTimeout(f.nameLocked(parent, name, n, a))
	}
	return n
}

// GetAttr asks the server. An object without a name that nobody has open is
// ESTALE: a path led here through an old entry, and the kernel walks it again.
func (f *FS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.status("getattr", f.getAttr(f.request(cancel, &in.InHeader, 0), in, out))
}

func (f *FS) getAttr(r request, in *fuse.GetAttrIn, out *fuse.AttrOut) error {
	n, err := f.node(in.NodeId)
	if err != nil {
		return err
	}
	var fh uint64
	if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
		fh = in.Fh()
	}
	a, err := f.onNode(r, n, true, func() (*volumev1.Request, error) {
		h, open, err := f.handleOrOpen(r, n, fh)
		return &volumev1.Request{Op: &volumev1.Request_GetAttr{GetAttr: &volumev1.GetAttr{Handle: h, Open: open}}}, err
	})
	if err != nil {
		return err
	}
	o := a.GetObject()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.creditLocked(n, o, a)
	ttl := f.tellLocked(n, o, a)
	if o.GetAttr().GetNlink() == 0 && n.opens == 0 && time.Since(n.lookedUp) > cacheTime {
		f.markStaleLocked(n)
		return syscall.ESTALE
	}
	f.fill(o.GetAttr(), &out.Attr)
	out.SetTimeout(ttl)
	return nil
}

// Access is never asked: the kernel checks modes itself (default_permissions).
func (f *FS) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }

// Statx is ENOSYS, for which the kernel uses GETATTR.
func (f *FS) Statx(<-chan struct{}, *fuse.StatxIn, *fuse.StatxOut) fuse.Status { return fuse.ENOSYS }

// StatFs answers from the numbers that the server sends by itself, so df never
// waits for the network.
func (f *FS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	*out = fuse.StatfsOut{NameLen: nameMax, Bsize: 4096, Frsize: 4096}
	b := f.vol.Load()
	if b == nil {
		return fuse.OK
	}
	if s := b.StatFs(); s != nil {
		*out = fuse.StatfsOut{
			Blocks: s.GetBlocks(), Bfree: s.GetBfree(), Bavail: s.GetBavail(), Files: s.GetFiles(), Ffree: s.GetFfree(),
			Bsize: s.GetBsize(), NameLen: s.GetNamelen(), Frsize: s.GetFrsize(),
		}
	}
	return fuse.OK
}

// nameMax is NAME_MAX of Linux file systems.
const nameMax = 255

// checkName refuses what the server would, without asking it.
func checkName(name string) error {
	switch {
	case name == "", name == ".", name == "..":
		return syscall.EINVAL
	case len(name) > nameMax:
		return syscall.ENAMETOOLONG
	}
	return nil
}
