package fusefs

import (
	"encoding/hex"
	"fmt"
	"slices"
	"syscall"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// Session is the client's callback for a session that is fresh after a
// reconnect: every handle and open is of the past. Nodes and files are reclaimed
// one by one when they are used next.
func (f *FS) Session(*volumev1.HelloResponse) { f.syncSession() }

// syncSession makes the client's present session ours, if it is not yet: the
// callback comes some time after requests run in it. It returns the epoch.
func (f *FS) syncSession() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.vol.Load(); b != nil {
		f.startSessionLocked(b)
	}
	return f.epoch
}

// startSessionLocked makes every handle one of the past, unless b's session is
// the one there is. A new binding comes into force under the same lock: who sent
// old handles to it finds the epoch changed.
func (f *FS) startSessionLocked(b *binding) {
	h := b.Hello()
	if f.session == string(h.GetSession()) {
		return
	}
	root := h.GetRoot()
	first := f.session == ""
	f.session = string(h.GetSession())
	f.vol.Store(b)
	other := f.instance != h.GetInstance()
	f.epoch++
	f.boot, f.instance = hex.EncodeToString(h.GetBootId()), h.GetInstance()
	f.received, f.unknown = 0, 0
	clear(f.forgets)
	clear(f.byHandle)
	for _, n := range f.nodes {
		n.seen, n.seenName, n.srvRefs = 0, 0, 0
		n.told, n.pages, n.versions = "", "", [8]string{}
		n.attr = forgetTime(n.attr)
		if other && n.unsynced && !first {
			n.lost = true
		}
	}
	for _, fl := range f.files {
		if fl.locked {
			fl.broken = true
		}
	}
	delete(f.byIdent, f.root.ident)
	f.root.ident = identityOf(root)
	f.byIdent[f.root.ident] = f.root
	f.root.handle, f.root.epoch = string(root.GetHandle()), f.epoch
	f.byHandle[f.root.handle] = f.root
	f.root.attr = root.GetAttr()
	f.wakeLocked()
	if !first {
		f.dropAllLocked()
	}
}

// forgetTime lets any attributes of the new session pass for newer ones.
func forgetTime(a *volumev1.Attr) *volumev1.Attr {
	if a == nil {
		return nil
	}
	return &volumev1.Attr{Mode: a.GetMode(), Ino: a.GetIno(), Nlink: a.GetNlink()}
}

// wakeLocked tells waiters of Refresh that something moved.
func (f *FS) wakeLocked() {
	close(f.progress)
	f.progress = make(chan struct{})
}

// handle returns a node's handle in the present session, reclaiming it if need
// be: through its name, whose directories are reclaimed first. ESTALE says that
// the name means something else by now, or that there is none.
func (f *FS) handle(r request, n *node) ([]byte, error) {
	for range 4096 { // no path is longer
		target, h, err := f.reclaimable(n)
		if err != nil || h != nil {
			return h, err
		}
		if err := f.reclaim(r, target); err != nil {
			return nil, err
		}
	}
	return nil, syscall.ELOOP
}

// reclaimable returns n's handle, or the node above or at n that is to be
// reclaimed next: the first below one that has a handle.
func (f *FS) reclaimable(n *node) (*node, []byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.epoch == f.epoch {
		return n, []byte(n.handle), nil
	}
	for range 4096 {
		if len(n.aliases) == 0 {
			return nil, nil, syscall.ESTALE
		}
		parent := n.aliases[len(n.aliases)-1].parent
		if parent.epoch == f.epoch {
			return n, nil, nil
		}
		n = parent
	}
	return nil, nil, syscall.ELOOP
}

// reclaim finds a node again whose directory has a handle. Of several names any
// will do.
func (f *FS) reclaim(r request, n *node) error {
	f.mu.Lock()
	epoch, ident := f.epoch, n.ident.proto()
	names := slices.Clone(n.aliases)
	f.mu.Unlock()

	err := error(syscall.ESTALE)
	for _, al := range slices.Backward(names) {
		f.mu.Lock()
		known, parent := al.parent.epoch == epoch, []byte(al.parent.handle)
		f.mu.Unlock()
		if !known {
			continue
		}
		var reply *volumev1.Reply
		reply, err = f.do(r, &volumev1.Request{Op: &volumev1.Request_Reclaim{Reclaim: &volumev1.Reclaim{
			Parent: parent, Name: []byte(al.name), Identity: ident}}})
		if err != nil {
			continue
		}
		f.mu.Lock()
		f.noteLocked(reply.GetReclaim().GetObject(), answer{reply, epoch})
		f.mu.Unlock()
		return nil
	}
	return fmt.Errorf("reclaim a handle: %w", err)
}

// reopen reclaims an open of the server for a file or directory stream.
func (f *FS) reopen(r request, n *node, flags uint32) (open, epoch uint64, err error) {
	f.mu.Lock()
	names, ident := slices.Clone(n.aliases), n.ident.proto()
	f.mu.Unlock()
	if n == f.root {
		names = []alias{{f.root, ""}}
	}
	err = syscall.ESTALE
	for _, al := range slices.Backward(names) {
		parent, herr := f.handle(r, al.parent)
		if herr != nil {
			err = herr
			continue
		}
		epoch = f.currentEpoch()
		q := &volumev1.Reclaim{Parent: parent, Name: []byte(al.name), Identity: ident, Open: true,
			Flags: flags &^ (syscall.O_CREAT | syscall.O_EXCL | syscall.O_TRUNC)}
		if n == f.root {
			q.Parent, q.Name = nil, nil
		}
		var reply *volumev1.Reply
		if reply, err = f.do(r, &volumev1.Request{Op: &volumev1.Request_Reclaim{Reclaim: q}}); err != nil {
			continue
		}
		f.mu.Lock()
		f.noteLocked(reply.GetReclaim().GetObject(), answer{reply, epoch})
		f.mu.Unlock()
		return reply.GetReclaim().GetOpen(), epoch, nil
	}
	return 0, 0, fmt.Errorf("reclaim an open file: %w", err)
}
