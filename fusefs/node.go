package fusefs

import (
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// identity tells objects apart for good, unlike an inode number.
type identity struct {
	dev, ino, generation uint64
	birth                int64
	birthNsec            uint32
}

func identityOf(o *volumev1.Object) identity {
	i := o.GetIdentity()
	return identity{i.GetDev(), i.GetIno(), i.GetGeneration(), i.GetBtime().GetSec(), i.GetBtime().GetNsec()}
}

func (i identity) proto() *volumev1.Identity {
	return &volumev1.Identity{Dev: i.dev, Ino: i.ino, Generation: i.generation,
		Btime: &volumev1.Time{Sec: i.birth, Nsec: i.birthNsec}}
}

// alias is a name that a node was told under.
type alias struct {
	parent *node
	name   string
}

// node is an object that the kernel knows. Its fields are guarded by FS.mu, but
// for id.
type node struct {
	id    uint64 // never used again
	ident identity

	handle  string
	epoch   uint64 // of the session that gave the handle
	srvRefs uint64 // references that the server counts for it

	refs    uint64 // the kernel's lookup count
	opens   int    // open files and directories
	aliases []alias
	former  alias // the name it lost last
	// children are the names that the kernel was told of, in a directory.
	children map[string]*node
	// retry has the names that got ESTALE lately, see retry.go. Until then their
	// lookups are not cached and their opens are by handle.
	retry map[string]time.Time

	target      []byte // of a link, until then, see retry.go
	targetUntil time.Time

	attr     *volumev1.Attr
	lookedUp time.Time
	byHandle time.Time // opens are by handle until then, see retry
	retold   time.Time // when told changed last, see retellLocked
	told     string    // the version whose attributes the kernel has
	pages    string    // the version that the kernel's pages are not older than; empty: drop them
	versions [8]string // the last ones seen in replies
	at       int
	seen     uint64 // the last event about the object
	seenName uint64 // the last event about a name in the directory
	used     bool   // was open: the kernel may have pages

	wrote      bool            // since the last FLUSH that reached the server
	unsynced   bool            // since the last FSYNC
	lost       bool            // unsynced data may be gone: the next FSYNC or FLUSH says so
	lockOwners map[uint64]bool // who took POSIX locks since it last closed the file
}

// maxAliases bounds the names kept of a node with many links.
const maxAliases = 64

func (f *FS) newNodeLocked() *node {
	n := &node{id: f.nextNode}
	f.nextNode++
	f.nodes[n.id] = n
	return n
}

// node returns the node of an id that the kernel sent.
func (f *FS) node(id uint64) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[id]; n != nil {
		return n, nil
	}
	return nil, syscall.ESTALE
}

// answer is a reply with the session it is of.
type answer struct {
	*volumev1.Reply
	epoch uint64
}

// adoptLocked returns the node of an object in a reply, a new one if need be,
// and takes over the reference. A new one must be told to the kernel or opened.
func (f *FS) adoptLocked(o *volumev1.Object, a answer) *node {
	id := identityOf(o)
	n := f.byIdent[id]
	if n == nil {
		n = f.newNodeLocked()
		n.ident = id
		// Events on a handle without a node are not kept apart: assume the last
		// one was about this.
		n.seen = f.unknown
		f.byIdent[id] = n
	}
	f.creditLocked(n, o, a)
	return n
}

// creditLocked counts the reference that o brought for n.
func (f *FS) creditLocked(n *node, o *volumev1.Object, a answer) {
	if a.epoch != f.epoch || n == f.root {
		return // a session that is gone counts nothing, and nobody counts the root
	}
	h := string(o.GetHandle())
	if n.handle != h || n.epoch != f.epoch {
		f.forgetHandleLocked(n)
		n.handle, n.epoch = h, f.epoch
		f.byHandle[h] = n
	}
	n.srvRefs++
}

// forgetHandleLocked gives the node's handle back.
func (f *FS) forgetHandleLocked(n *node) {
	if n.handle == "" {
		return
	}
	if f.byHandle[n.handle] == n {
		delete(f.byHandle, n.handle)
	}
	if n.epoch == f.epoch && n.srvRefs > 0 {
		f.queueForgetLocked(n.handle, n.srvRefs)
	}
	n.handle, n.srvRefs = "", 0
}

// giveBackLocked gives back the reference of an object that is of no use.
func (f *FS) giveBackLocked(o *volumev1.Object) {
	h := string(o.GetHandle())
	switch n := f.byHandle[h]; {
	case n == f.root && n != nil:
	case n != nil:
		n.srvRefs++
	case h != f.root.handle:
		f.queueForgetLocked(h, 1)
	}
}

// noteLocked takes what a reply says of an object besides its main matter, if
// there is a node for it.
func (f *FS) noteLocked(o *volumev1.Object, a answer) {
	if o == nil {
		return
	}
	n := f.byIdent[identityOf(o)]
	if n == nil {
		if a.epoch == f.epoch {
			f.giveBackLocked(o)
		}
		return
	}
	f.creditLocked(n, o, a)
	known := n.knows(o.GetVersion())
	f.learnLocked(n, o)
	if n.told == string(o.GetVersion()) {
		return
	}
	// The kernel does not get these attributes, and the server reports no event
	// for a version that it sent: what the kernel has is to be dropped.
	n.told = ""
	f.notify.submit(note{kind: noteAttr, node: n.id})
	if !known && n.used && !n.isDir() {
		n.pages = ""
		f.notify.submit(note{kind: notePages, node: n.id})
	}
}

// learnLocked takes what o says of n, unless that is old news.
func (f *FS) learnLocked(n *node, o *volumev1.Object) (fresh bool) {
	v := string(o.GetVersion())
	if !slices.Contains(n.versions[:], v) {
		n.versions[n.at%len(n.versions)] = v
		n.at++
	}
	if n.attr != nil && before(o.GetAttr().GetCtime(), n.attr.GetCtime()) {
		return false
	}
	n.attr = o.GetAttr()
	return true
}

func before(a, b *volumev1.Time) bool {
	if a.GetSec() != b.GetSec() {
		return a.GetSec() < b.GetSec()
	}
	return a.GetNsec() < b.GetNsec()
}

// knows tells whether a reply had this version.
func (n *node) knows(version []byte) bool {
	return slices.ContainsFunc(n.versions[:], func(v string) bool { return v != "" && v == string(version) })
}

// tellLocked is learnLocked for attributes that go to the kernel now, and
// returns how long it may keep them: not at all where an event that came in has
// overtaken the reply.
func (f *FS) tellLocked(n *node, o *volumev1.Object, a answer) time.Duration {
	fresh := f.learnLocked(n, o)
	if !fresh {
		return 0
	}
	if v := string(o.GetVersion()); n.told != v {
		f.retellLocked(n)
		n.told = v
	}
	if a.GetEvent() < n.seen || a.epoch != f.epoch || !f.watched() {
		return 0
	}
	return cacheTime
}

// retellLocked remembers that the kernel is told other attributes than before. Of
// two replies that cross on their way into the kernel it takes the first and
// drops the other, whichever is newer (fuse_change_attributes), and the server
// reports neither version again. So Refresh drops the attributes of such nodes.
func (f *FS) retellLocked(n *node) {
	now := time.Now()
	if n.told != "" && now.Sub(n.retold) > cacheTime/2 {
		n.retold = now
		if f.recent = append(f.recent, n); len(f.recent)%256 == 0 {
			f.recentLocked()
		}
	}
}

// recentLocked returns notes for the nodes that retellLocked remembered within
// the time that the kernel keeps anything.
func (f *FS) recentLocked() []note {
	var notes []note
	since := time.Now().Add(-2 * cacheTime)
	f.recent = slices.DeleteFunc(f.recent, func(n *node) bool { return n.retold.Before(since) })
	for _, n := range f.recent {
		notes = append(notes, note{kind: noteAttr, node: n.id})
	}
	return notes
}

// nameLocked records that the kernel is told name in parent means n, and returns
// how long it may keep that.
func (f *FS) nameLocked(parent *node, name string, n *node, a answer) time.Duration {
	if old := parent.children[name]; old != n {
		f.unnameLocked(parent, name)
		if parent.children == nil {
			parent.children = map[string]*node{}
		}
		parent.children[name] = n
	}
	n.dropAliasLocked(alias{parent, name})
	n.aliases = append(n.aliases, alias{parent, name})
	if len(n.aliases) > maxAliases {
		f.unnameLocked(n.aliases[0].parent, n.aliases[0].name)
	}
	n.lookedUp = time.Now()
	if until, ok := parent.retry[name]; ok {
		if n.lookedUp.Before(until) {
			n.byHandle = until
			return 0
		}
		delete(parent.retry, name)
	}
	if a.GetEvent() < parent.seenName || a.epoch != f.epoch || !f.watched() {
		return 0
	}
	return cacheTime
}

// unnameLocked forgets that name in parent means anything. A directory keeps its
// alias as a hint where it is, as processes may still be inside.
func (f *FS) unnameLocked(parent *node, name string) {
	n := parent.children[name]
	if n == nil {
		return
	}
	delete(parent.children, name)
	n.former = alias{parent, name}
	if len(n.aliases) > 1 || !n.isDir() {
		n.dropAliasLocked(alias{parent, name})
	}
	f.dropLocked(n)
}

// aliasLocked returns the newest name of n that still stands.
func (n *node) aliasLocked() (alias, bool) {
	for _, al := range slices.Backward(n.aliases) {
		if al.parent.children[al.name] == n {
			return al, true
		}
	}
	return alias{}, false
}

// dropLocked removes a node that nobody refers to.
func (f *FS) dropLocked(n *node) {
	if n.refs > 0 || n.opens > 0 || n == f.root || f.nodes[n.id] != n {
		return
	}
	delete(f.nodes, n.id)
	if f.byIdent[n.ident] == n {
		delete(f.byIdent, n.ident)
	}
	for _, al := range n.aliases {
		if al.parent.children[al.name] == n {
			delete(al.parent.children, al.name)
		}
	}
	n.aliases = nil
	f.forgetHandleLocked(n)
}

// Forget takes the kernel's word that it dropped lookups of a node.
func (f *FS) Forget(id, lookups uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[id]
	if n == nil || n == f.root {
		return
	}
	n.refs -= min(lookups, n.refs)
	f.dropLocked(n)
}

func (n *node) isDir() bool { return n.attr.GetMode()&syscall.S_IFMT == syscall.S_IFDIR }

// depthLocked returns how far a directory is below the root, or false where the
// way up is not known.
func (f *FS) depthLocked(n *node) (int, bool) {
	for depth := range 4096 {
		if n == f.root {
			return depth, true
		}
		al, ok := n.aliasLocked()
		if !ok {
			return 0, false
		}
		n = al.parent
	}
	return 0, false
}

// queueForgetLocked leaves references to the keeper.
func (f *FS) queueForgetLocked(handle string, count uint64) {
	f.forgets[handle] += count
	f.wakeKeeper()
}

func (f *FS) wakeKeeper() {
	select {
	case f.keeper <- struct{}{}:
	default:
	}
}

// maxForgets bounds the handles in one Forget request.
const maxForgets = 512

// keep gives back what is not needed any more, in batches: forgotten handles and
// opens that were kept for a while. Nobody waits for it.
func (f *FS) keep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.keeper:
		case <-timer.C:
		}
		b := f.vol.Load()
		if b == nil {
			continue
		}
		for q := f.nextForget(); len(q.GetHandles()) > 0 && f.ctx.Err() == nil; q = f.nextForget() {
			f.send(f.ctx, b, &volumev1.Request{Op: &volumev1.Request_Forget{Forget: q}})
		}
		due, next := f.duePins()
		if len(due) > 0 {
			f.send(f.ctx, b, &volumev1.Request{Op: &volumev1.Request_Release{Release: &volumev1.Release{Opens: due}}})
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

func (f *FS) nextForget() *volumev1.Forget {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := &volumev1.Forget{}
	for h, count := range f.forgets {
		if len(q.Handles) == maxForgets {
			break
		}
		q.Handles = append(q.Handles, &volumev1.ForgetOne{Handle: []byte(h), Count: count})
		delete(f.forgets, h)
	}
	return q
}

// fill writes a node's attributes for the kernel.
func (f *FS) fill(at *volumev1.Attr, out *fuse.Attr) {
	*out = fuse.Attr{
		Ino: at.GetIno(), Size: at.GetSize(), Blocks: at.GetBlocks(), Mode: at.GetMode(), Nlink: at.GetNlink(),
		Atime: uint64(at.GetAtime().GetSec()), Atimensec: at.GetAtime().GetNsec(),
		Mtime: uint64(at.GetMtime().GetSec()), Mtimensec: at.GetMtime().GetNsec(),
		Ctime: uint64(at.GetCtime().GetSec()), Ctimensec: at.GetCtime().GetNsec(),
		Owner: fuse.Owner{Uid: at.GetUid(), Gid: at.GetGid()},
		Rdev:  uint32(at.GetRdev()), Blksize: at.GetBlksize(),
	}
	if f.opts.Squash {
		out.Owner = fuse.Owner{Uid: f.opts.UID, Gid: f.opts.GID}
	}
}

func (n *node) dropAliasLocked(al alias) {
	n.aliases = slices.DeleteFunc(n.aliases, func(x alias) bool { return x == al })
}
