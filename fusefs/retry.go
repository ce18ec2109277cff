package fusefs

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// A name that is replaced again and again would give the kernel ESTALE twice in
// a row: for the old object, and for the one it found when it looked again, which
// is replaced by now, too. It hands the second one to the program. So for a while
// after an ESTALE a lookup of the name brings with it what keeps the object it
// found usable: an open of the file, or the link's target.

// pin is an open that keeps an object until a time.
type pin struct {
	open, epoch uint64
	until       time.Time
}

// markStaleLocked begins that while for every name of n, the one it lost too: the
// kernel may have come by that.
func (f *FS) markStaleLocked(n *node) {
	for _, al := range n.aliases {
		f.markNameLocked(al)
	}
	if n.former.parent != nil {
		f.markNameLocked(n.former)
	}
}

func (f *FS) markNameLocked(al alias) {
	now := time.Now()
	if al.parent.retry == nil {
		al.parent.retry = map[string]time.Time{}
	}
	if len(al.parent.retry) >= 64 {
		for name, until := range al.parent.retry {
			if now.After(until) {
				delete(al.parent.retry, name)
			}
		}
	}
	al.parent.retry[al.name] = now.Add(cacheTime)
}

// onNode is op for a request on n by its handle. ESTALE, for which the kernel
// walks the path again, marks n's names.
func (f *FS) onNode(r request, n *node, repeatable bool, build func() (*volumev1.Request, error)) (answer, error) {
	a, err := f.op(r, repeatable, build)
	if errors.Is(err, syscall.ESTALE) {
		f.mu.Lock()
		f.markStaleLocked(n)
		f.mu.Unlock()
	}
	return a, err
}

// marked tells whether a name is in its while.
func (f *FS) marked(parent *node, name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, ok := parent.retry[name]
	return ok && time.Now().Before(until)
}

// pinTries bounds the race with whoever replaces the name.
const pinTries = 16

// find looks a name up and returns its object, nil for none.
func (f *FS) find(r request, parent *node, name string) (*volumev1.Object, answer, error) {
	if !f.marked(parent, name) {
		return f.walk(r, parent, name)
	}
	for range pinTries {
		o, a, err := f.findOpen(r, parent, name)
		if err == nil {
			return o, a, nil
		}
		if !errors.Is(err, syscall.ELOOP) {
			break // absent, or nothing to be opened
		}
		o, a, err = f.findLink(r, parent, name)
		if !errors.Is(err, syscall.ESTALE) {
			return o, a, err
		}
	}
	return f.walk(r, parent, name)
}

func (f *FS) walk(r request, parent *node, name string) (*volumev1.Object, answer, error) {
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		h, err := f.handle(r, parent)
		return &volumev1.Request{Op: &volumev1.Request_Walk{Walk: &volumev1.Walk{
			Handle: h, Names: [][]byte{[]byte(name)}}}}, err
	})
	if err != nil {
		return nil, a, err
	}
	if steps := a.GetWalk().GetSteps(); len(steps) > 0 {
		return steps[0], a, nil
	}
	if e := a.GetWalk().GetErrno(); e != 0 && syscall.Errno(e) != syscall.ENOENT {
		return nil, a, syscall.Errno(e)
	}
	return nil, a, nil
}

// findOpen looks a name up by opening it, and keeps the open for a while.
func (f *FS) findOpen(r request, parent *node, name string) (*volumev1.Object, answer, error) {
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		h, err := f.handle(r, parent)
		return &volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: &volumev1.OpenAt{
			Parent: h, Name: []byte(name), Flags: unix.O_RDONLY}}}, err
	})
	if err != nil {
		return nil, a, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pins = append(f.pins, pin{a.GetOpen().GetOpen(), a.epoch, time.Now().Add(cacheTime)})
	f.wakeKeeper()
	return a.GetOpen().GetObject(), a, nil
}

// findLink looks a symbolic link up with its target. ESTALE: it is another
// object by now.
func (f *FS) findLink(r request, parent *node, name string) (*volumev1.Object, answer, error) {
	o, a, err := f.walk(r, parent, name)
	if o == nil || err != nil || o.GetAttr().GetMode()&syscall.S_IFMT != syscall.S_IFLNK {
		f.giveBack(o)
		return nil, a, errors.Join(err, syscall.ESTALE)
	}
	l, err := f.do(r, &volumev1.Request{Op: &volumev1.Request_ReadLink{ReadLink: &volumev1.ReadLink{Handle: o.GetHandle()}}})
	if err != nil {
		f.giveBack(o)
		return nil, a, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.adoptLocked(o, a)
	n.target, n.targetUntil = l.GetData().GetData(), time.Now().Add(cacheTime)
	if n != f.root && n.epoch == a.epoch {
		n.srvRefs-- // whoever tells the kernel counts the reference
	}
	return o, a, nil
}

func (f *FS) giveBack(o *volumev1.Object) {
	if o == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.giveBackLocked(o)
}

// duePins takes the opens whose time is over from the list and returns when to
// look next; all: without regard to time.
func (f *FS) duePins() (due []uint64, next time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	left := f.pins[:0]
	for _, p := range f.pins {
		switch {
		case p.epoch != f.epoch:
		case now.After(p.until):
			due = append(due, p.open)
		default:
			left = append(left, p)
		}
	}
	f.pins = left
	if len(left) == 0 {
		return due, 0
	}
	return due, cacheTime
}
