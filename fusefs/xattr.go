package fusefs

import (
	"bytes"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// Extended attributes of the user namespace only. Of the others nothing is seen
// and nothing can be set; access control lists would need the kernel to check
// them (see docs/semantics.md).
func userAttr(name string) bool { return strings.HasPrefix(name, "user.") }

// GetXAttr reads an attribute.
func (f *FS) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if !userAttr(name) {
		return 0, fuse.ENODATA
	}
	a, err := f.xattr(f.request(cancel, h, 0), h.NodeId, true, func(handle []byte) *volumev1.Request {
		return &volumev1.Request{Op: &volumev1.Request_GetXattr{GetXattr: &volumev1.GetXattr{
			Handle: handle, Name: []byte(name)}}}
	})
	if err != nil {
		return 0, f.status("getxattr", err)
	}
	return copyOut(dest, a.GetData().GetData())
}

// ListXAttr lists the names, each with a NUL after it.
func (f *FS) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	a, err := f.xattr(f.request(cancel, h, 0), h.NodeId, true, func(handle []byte) *volumev1.Request {
		return &volumev1.Request{Op: &volumev1.Request_ListXattr{ListXattr: &volumev1.ListXattr{Handle: handle}}}
	})
	if err != nil {
		return 0, f.status("listxattr", err)
	}
	var names []byte
	for name := range bytes.SplitSeq(a.GetData().GetData(), []byte{0}) {
		if userAttr(string(name)) {
			names = append(append(names, name...), 0)
		}
	}
	return copyOut(dest, names)
}

func copyOut(dest, data []byte) (uint32, fuse.Status) {
	if len(data) > len(dest) {
		return uint32(len(data)), fuse.ERANGE
	}
	return uint32(copy(dest, data)), fuse.OK
}

// SetXAttr sets an attribute.
func (f *FS) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	if !userAttr(name) {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	value := bytes.Clone(data)
	_, err := f.xattr(f.request(cancel, &in.InHeader, 0), in.NodeId, false, func(handle []byte) *volumev1.Request {
		return &volumev1.Request{Op: &volumev1.Request_SetXattr{SetXattr: &volumev1.SetXattr{
			Handle: handle, Name: []byte(name), Value: value, Flags: in.Flags}}}
	})
	return f.status("setxattr", err)
}

// RemoveXAttr removes an attribute.
func (f *FS) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if !userAttr(name) {
		return fuse.ENODATA
	}
	_, err := f.xattr(f.request(cancel, h, 0), h.NodeId, false, func(handle []byte) *volumev1.Request {
		return &volumev1.Request{Op: &volumev1.Request_RemoveXattr{RemoveXattr: &volumev1.RemoveXattr{
			Handle: handle, Name: []byte(name)}}}
	})
	return f.status("removexattr", err)
}

func (f *FS) xattr(r request, id uint64, repeatable bool, build func(handle []byte) *volumev1.Request) (answer, error) {
	n, err := f.node(id)
	if err != nil {
		return answer{}, err
	}
	a, err := f.onNode(r, n, repeatable, func() (*volumev1.Request, error) {
		h, err := f.handle(r, n)
		if err != nil {
			return nil, err
		}
		return build(h), nil
	})
	if err == nil {
		f.note(a)
	}
	return a, err
}
