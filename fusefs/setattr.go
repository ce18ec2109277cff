package fusefs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// SetAttr changes attributes in one request. The kernel has checked the caller's
// rights (default_permissions).
func (f *FS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.status("setattr", f.setAttr(f.request(cancel, &in.InHeader, 0), in, out))
}

func (f *FS) setAttr(r request, in *fuse.SetAttrIn, out *fuse.AttrOut) error {
	n, err := f.node(in.NodeId)
	if err != nil {
		return err
	}
	q := &volumev1.SetAttr{KillPriv: in.Valid&fuse.FATTR_KILL_SUIDGID != 0}
	if err := f.setOwner(q, in); err != nil {
		return err
	}
	setRest(q, in)
	var fh uint64
	if in.Valid&fuse.FATTR_FH != 0 {
		fh = in.Fh
	}
	empty := q.Mode == nil && q.Uid == nil && q.Gid == nil && q.Size == nil && q.Atime == nil && !q.AtimeNow &&
		q.Mtime == nil && !q.MtimeNow && !q.KillPriv
	a, err := f.onNode(r, n, true, func() (*volumev1.Request, error) {
		h, open, err := f.handleOrOpen(r, n, fh)
		if empty {
			return &volumev1.Request{Op: &volumev1.Request_GetAttr{GetAttr: &volumev1.GetAttr{Handle: h, Open: open}}}, err
		}
		q.Handle, q.Open = h, open
		return &volumev1.Request{Op: &volumev1.Request_SetAttr{SetAttr: q}}, err
	})
	if err != nil {
		return err
	}
	o := a.GetObject()
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.Size != nil {
		n.wrote, n.unsynced = true, true
	}
	f.creditLocked(n, o, a)
	out.SetTimeout(f.tellLocked(n, o, a))
	f.fill(o.GetAttr(), &out.Attr)
	return nil
}

// setOwner follows the owner rule. Squashed, everything belongs to the mount's
// owner: root may say what it likes and anybody may say what is shown, without
// effect; the rest is refused.
func (f *FS) setOwner(q *volumev1.SetAttr, in *fuse.SetAttrIn) error {
	uid, hasUID := in.GetUID()
	gid, hasGID := in.GetGID()
	if !f.opts.Squash {
		if hasUID {
			q.Uid = &uid
		}
		if hasGID {
			q.Gid = &gid
		}
		return nil
	}
	asShown := (!hasUID || uid == f.opts.UID) && (!hasGID || gid == f.opts.GID)
	if in.Caller.Uid != 0 && !asShown {
		return syscall.EPERM
	}
	return nil
}

func setRest(q *volumev1.SetAttr, in *fuse.SetAttrIn) {
	if mode, ok := in.GetMode(); ok {
		q.Mode = &mode
	}
	if size, ok := in.GetSize(); ok {
		q.Size = &size
	}
	switch {
	case in.Valid&fuse.FATTR_ATIME_NOW != 0:
		q.AtimeNow = true
	case in.Valid&fuse.FATTR_ATIME != 0:
		q.Atime = &volumev1.Time{Sec: int64(in.Atime), Nsec: in.Atimensec}
	}
	switch {
	case in.Valid&fuse.FATTR_MTIME_NOW != 0:
		q.MtimeNow = true
	case in.Valid&fuse.FATTR_MTIME != 0:
		q.Mtime = &volumev1.Time{Sec: int64(in.Mtime), Nsec: in.Mtimensec}
	}
}
