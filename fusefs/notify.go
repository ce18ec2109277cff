package fusefs

import (
	"context"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// note is one thing that the kernel has to forget.
type note struct {
	kind  noteKind
	node  uint64
	name  string
	batch *batch
}

type noteKind uint8

const (
	// noteAttr drops attributes. It waits for nothing in the kernel.
	noteAttr noteKind = iota
	// notePages drops attributes and pages. It waits for page locks, which a read
	// that waits for the server holds.
	notePages
	// noteEntry drops a name. It waits for the directory's lock, which a lookup
	// or change that waits for the server holds.
	noteEntry
	// noteEpoch drops all names.
	noteEpoch
)

// batch is a set of notes that was queued together.
type batch struct {
	done chan struct{}

	// Guarded by notifyQueue.mu.
	left     int
	replaced []*batch // once for each note that this one stands for
}

// entryWorkers bounds how many notes that may have to wait do so at once.
const entryWorkers = 4

// notifyQueue tells the kernel from goroutines that hold no lock and serve no
// request: attributes by one of its own, so that they never wait behind the
// others.
type notifyQueue struct {
	fs *FS

	mu      sync.Mutex
	more    *sync.Cond
	attrs   []note
	rest    []note
	open    map[*batch]struct{}
	stopped bool
}

func newNotifyQueue(f *FS) *notifyQueue {
	q := &notifyQueue{fs: f, open: map[*batch]struct{}{}}
	q.more = sync.NewCond(&q.mu)
	f.wg.Go(func() { q.work(&q.attrs) })
	for range entryWorkers {
		f.wg.Go(func() { q.work(&q.rest) })
	}
	return q
}

// submit queues notes and returns how many of the slow kind wait now.
func (q *notifyQueue) submit(notes ...note) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.submitLocked(notes)
	return len(q.rest)
}

func (q *notifyQueue) submitLocked(notes []note) *batch {
	if len(notes) == 0 || q.stopped {
		return nil
	}
	b := &batch{left: len(notes), done: make(chan struct{})}
	q.open[b] = struct{}{}
	for _, n := range notes {
		n.batch = b
		if n.kind == noteAttr {
			q.attrs = append(q.attrs, n)
		} else {
			q.rest = append(q.rest, n)
		}
	}
	q.more.Broadcast()
	return b
}

// replace queues notes that drop everything in place of all that waits, whose
// batches are done when these are.
func (q *notifyQueue) replace(notes []note) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old := append(q.attrs, q.rest...)
	q.attrs, q.rest = nil, nil
	b := q.submitLocked(notes)
	if b == nil {
		return
	}
	for _, n := range old {
		b.replaced = append(b.replaced, n.batch)
	}
}

func (q *notifyQueue) finishLocked(b *batch) {
	b.left--
	if b.left == 0 {
		delete(q.open, b)
		close(b.done)
		for _, old := range b.replaced {
			q.finishLocked(old)
		}
	}
}

func (q *notifyQueue) work(list *[]note) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(*list) == 0 && !q.stopped {
			q.more.Wait()
		}
		if q.stopped {
			return
		}
		n := (*list)[0]
		*list = (*list)[1:]
		q.mu.Unlock()
		q.fs.tellKernel(n)
		q.mu.Lock()
		q.finishLocked(n.batch)
	}
}

// wait returns when everything queued before is told. What replaced some of it
// meanwhile is told first, too: a batch that was replaced is done only when its
// replacement is.
func (q *notifyQueue) wait(ctx context.Context) error {
	q.mu.Lock()
	var waits []<-chan struct{}
	for b := range q.open {
		waits = append(waits, b.done)
	}
	q.mu.Unlock()
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		case <-q.fs.ctx.Done():
			return context.Cause(q.fs.ctx)
		}
	}
	return nil
}

// stop ends the workers; what waits is dropped.
func (q *notifyQueue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.more.Broadcast()
}

// notifyInode tells the kernel to drop an inode's attributes, and its pages from
// off on if that is not negative. An inode that it does not have is no error.
func (f *FS) notifyInode(id uint64, off, length int64) {
	if k := f.kernel.Load(); k != nil {
		k.inode(id, off, length)
	}
}

func (f *FS) tellKernel(n note) {
	k := f.kernel.Load()
	if k == nil {
		return
	}
	var st fuse.Status
	switch n.kind {
	case noteAttr:
		st = k.inode(n.node, -1, 0)
	case notePages:
		st = k.inode(n.node, 0, 0)
	case noteEntry:
		st = k.entry(n.node, n.name)
	case noteEpoch:
		if k.epoch == nil || k.epoch() != nil {
			for _, name := range f.namesToDrop() {
				k.entry(name.node, name.name)
			}
		}
	}
	if st != fuse.OK && st != fuse.ENOENT {
		f.log.Debug("notification refused", "node", n.node, "status", st)
	}
}
