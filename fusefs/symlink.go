package fusefs

import (
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// Readlink returns a link's target, which the reader's kernel follows on the
// reader's machine. Contained, a target that may lead out of the mount is EPERM;
// the link itself can be listed, renamed and removed.
func (f *FS) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	target, err := f.readlink(f.request(cancel, h, 0), h.NodeId)
	return target, f.status("readlink", err)
}

func (f *FS) readlink(r request, id uint64) ([]byte, error) {
	n, err := f.node(id)
	if err != nil {
		return nil, err
	}
	target, err := f.target(r, n)
	if err != nil {
		return nil, err
	}
	if len(target) == 0 || len(target) >= syscall.PathMax {
		return nil, syscall.EIO
	}
	if f.opts.Symlinks == SymlinksContain && !f.contained(n, string(target)) {
		return nil, syscall.EPERM
	}
	return target, nil
}

func (f *FS) target(r request, n *node) ([]byte, error) {
	f.mu.Lock()
	target, until := n.target, n.targetUntil
	f.mu.Unlock()
	if time.Now().Before(until) {
		return target, nil
	}
	a, err := f.onNode(r, n, true, func() (*volumev1.Request, error) {
		h, err := f.handle(r, n)
		return &volumev1.Request{Op: &volumev1.Request_ReadLink{ReadLink: &volumev1.ReadLink{Handle: h}}}, err
	})
	return a.GetData().GetData(), err
}

// contained tells whether a target stays in the mount. A purely textual answer
// is right only if `..` comes first and nowhere else: behind a name that is a
// link itself it would climb from another place.
func (f *FS) contained(n *node, target string) bool {
	if strings.HasPrefix(target, "/") {
		return f.insideMount(target)
	}
	climb, named := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if named {
				return false
			}
			climb++
		default:
			named = true
		}
	}
	if climb == 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// Of several names, the one nearest to the root counts.
	found := false
	for _, al := range n.aliases {
		depth, ok := f.depthLocked(al.parent)
		if !ok || depth < climb {
			return false
		}
		found = true
	}
	return found
}

// insideMount tells whether an absolute target is the mount's own path or below.
func (f *FS) insideMount(target string) bool {
	if f.opts.Path == "" {
		return false
	}
	rest, ok := strings.CutPrefix(target, f.opts.Path)
	if !ok || rest != "" && rest[0] != '/' {
		return false
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == ".." {
			return false
		}
	}
	return true
}
