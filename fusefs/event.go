package fusefs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// maxEvents is how many changes at once are told to the kernel one by one; past
// it everything is dropped.
const maxEvents = 1000

// Events is the client's callback for what the server's watch saw. Counters move
// before it returns, so a reply that is older than an event is not cached; the
// kernel is told by workers.
func (f *FS) Events(e *volumev1.Events) {
	f.mu.Lock()
	defer f.mu.Unlock()
	number := max(e.GetNumber(), f.received)
	if e.GetLost() || len(e.GetEvents()) > maxEvents {
		f.unknown = number
		for _, n := range f.nodes {
			n.seen, n.seenName = number, number
		}
		f.dropAllLocked()
	} else {
		var notes []note
		for _, ev := range e.GetEvents() {
			switch k := ev.GetKind().(type) {
			case *volumev1.Event_Object:
				notes = f.objectEventLocked(notes, k.Object, number)
			case *volumev1.Event_Entry:
				notes = f.entryEventLocked(notes, k.Entry, number)
			}
		}
		if f.notify.submit(notes...) > maxEvents {
			f.dropAllLocked()
		}
	}
	f.received = number
	f.wakeLocked()
}

// objectEventLocked: the attributes are always dropped, as what a reply told us
// may have reached the kernel behind an older one; the pages only if no reply
// had this version, since then the kernel compares times itself.
func (f *FS) objectEventLocked(notes []note, e *volumev1.ObjectEvent, number uint64) []note {
	n := f.byHandle[string(e.GetHandle())]
	if n == nil {
		f.unknown = number
		return notes
	}
	n.seen = number
	n.told = ""
	notes = append(notes, note{kind: noteAttr, node: n.id})
	if e.GetAttrOnly() || n.knows(e.GetVersion()) {
		return notes
	}
	n.pages = ""
	if n.used && n.attr.GetMode()&syscall.S_IFMT == syscall.S_IFREG {
		notes = append(notes, note{kind: notePages, node: n.id})
	}
	return notes
}

// entryEventLocked: a name that the kernel was not told of, or that means what it
// was told, is no news. Lookups on their way need no care: the kernel makes them,
// and the drop of an entry, with the directory locked.
func (f *FS) entryEventLocked(notes []note, e *volumev1.EntryEvent, number uint64) []note {
	dir := f.byHandle[string(e.GetParent())]
	if dir == nil {
		f.unknown = number
		return notes
	}
	dir.seen, dir.seenName = number, number
	dir.told = ""
	notes = append(notes, note{kind: noteAttr, node: dir.id})
	name := string(e.GetName())
	n := dir.children[name]
	if n == nil || !e.GetGone() && n.epoch == f.epoch && n.handle == string(e.GetHandle()) {
		return notes
	}
	n.seen = number // its links are fewer, or it moved
	f.unnameLocked(dir, name)
	return append(notes, note{kind: noteAttr, node: n.id}, note{kind: noteEntry, node: dir.id, name: name})
}

// dropAllLocked makes the kernel forget everything it was told: one increment of
// the mount's epoch for all names where the kernel has that, and each node's
// attributes and pages.
func (f *FS) dropAllLocked() {
	notes := []note{{kind: noteEpoch}}
	for _, n := range f.nodes {
		n.told, n.pages = "", ""
		notes = append(notes, note{kind: noteAttr, node: n.id})
		if n.used && !n.isDir() {
			notes = append(notes, note{kind: notePages, node: n.id})
		}
	}
	f.notify.replace(notes)
}

// namesToDrop lists every name the kernel was told, for a kernel without epochs.
func (f *FS) namesToDrop() []note {
	f.mu.Lock()
	defer f.mu.Unlock()
	var notes []note
	for _, n := range f.nodes {
		for name := range n.children {
			notes = append(notes, note{kind: noteEntry, node: n.id, name: name})
		}
	}
	return notes
}

// Refresh returns when every event up to number of a server process has come and
// the kernel was told what it has to drop for them. An event of a process that
// is not ours drops everything. boot is the server's boot id in hexadecimal.
func (f *FS) Refresh(ctx context.Context, boot string, number uint64) error {
	epoch := f.syncSession()
	f.mu.Lock()
	other := boot != f.boot
	if other {
		f.dropAllLocked()
	}
	have := f.received >= number
	f.mu.Unlock()
	if !other && !have {
		if err := f.catchUp(ctx, epoch, number); err != nil {
			return fmt.Errorf("wait for event %d: %w", number, err)
		}
	}
	f.mu.Lock()
	f.notify.submit(f.recentLocked()...)
	f.mu.Unlock()
	return f.notify.wait(ctx)
}

// catchUp asks the server anything on the control channel: events come in order
// with its replies, so all up to the reply's are here. Events still under way
// come by themselves.
func (f *FS) catchUp(ctx context.Context, epoch, number uint64) error {
	a, err := f.op(request{}, true, func() (*volumev1.Request, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return &volumev1.Request{Op: &volumev1.Request_GetAttr{GetAttr: &volumev1.GetAttr{Handle: []byte(f.root.handle)}}}, nil
	})
	if err != nil && !errors.Is(err, syscall.ESTALE) {
		return err
	}
	if err == nil {
		f.mu.Lock()
		if a.epoch == f.epoch && a.GetEvent() > f.received {
			f.received = a.GetEvent()
			f.wakeLocked()
		}
		f.mu.Unlock()
	}
	return f.waitFor(ctx, func() bool { return f.received >= number || f.epoch != epoch })
}
