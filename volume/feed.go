package volume

import (
	"sync"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// event is one invalidation. Exactly one of object, parent and lost is set.
type event struct {
	object   *object
	version  version
	attrOnly bool

	parent *object
	name   string
	child  *object
	gone   bool

	lost bool

	// only and except narrow who is told; nil: everybody. A number goes to
	// everybody even so.
	only, except *session
}

// feedSize is how many events a client may miss while it is away.
const feedSize = 1 << 14

// feed numbers events and keeps the last ones. The zero number is never used, so
// that it can stand for none.
type feed struct {
	mu   sync.Mutex
	ring []event // event n is ring[n%feedSize]
	last uint64
	// first is the number of the oldest event kept.
	first uint64
	grown chan struct{} // closed when last moves
}

// newFeed begins after number last.
func newFeed(last uint64) *feed {
	return &feed{last: last, first: last + 1, grown: make(chan struct{})}
}

// number is that of the last event so far.
func (f *feed) number() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

func (f *feed) append(events ...event) {
	if len(events) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.ring == nil {
		f.ring = make([]event, feedSize)
	}
	for _, e := range events {
		f.last++
		f.ring[f.last%feedSize] = e
	}
	if f.last-f.first >= feedSize {
		f.first = f.last - feedSize + 1
	}
	close(f.grown)
	f.grown = make(chan struct{})
}

// after returns a channel that closes when there are events after number n.
func (f *feed) after(n uint64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last > n {
		ready := make(chan struct{})
		close(ready)
		return ready
	}
	return f.grown
}

// maxEventsPerFrame keeps a frame of events far below the message limit.
const maxEventsPerFrame = 1000

// frame returns the next events after n for a session, or nil if there are none.
// A frame may have no event in it, only the number.
func (f *feed) frame(n uint64, s *session) *volumev1.Events {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last <= n {
		return nil
	}
	if n+1 < f.first {
		return &volumev1.Events{Number: f.last, Lost: true}
	}
	out := &volumev1.Events{Number: n}
	for out.Number < f.last && len(out.Events) < maxEventsPerFrame && !out.Lost {
		out.Number++
		e := &f.ring[out.Number%feedSize]
		if e.only != nil && e.only != s || e.except != nil && e.except == s {
			continue
		}
		if e.lost {
			out.Lost = true
			continue
		}
		out.Events = append(out.Events, e.message())
	}
	return out
}

func (e *event) message() *volumev1.Event {
	if e.object != nil {
		o := &volumev1.ObjectEvent{Handle: e.object.handle[:], AttrOnly: e.attrOnly}
		if e.version != (version{}) {
			o.Version = append([]byte(nil), e.version[:]...)
		}
		return &volumev1.Event{Kind: &volumev1.Event_Object{Object: o}}
	}
	n := &volumev1.EntryEvent{Parent: e.parent.handle[:], Name: []byte(e.name), Gone: e.gone}
	if e.child != nil {
		n.Handle = e.child.handle[:]
	}
	return &volumev1.Event{Kind: &volumev1.Event_Entry{Entry: n}}
}
