// Package procstream carries a core.Process over any pair of message streams:
// Serve on the process's side, NewProcess on the other. The same messages travel
// between client and gateway, gateway and plugin, plugin and node, node and shim.
//
// Every stream has a window of credit: a side sends at most Window bytes that
// the other has not read, so an unread stream never blocks another, nor the exit.
package procstream

import (
	"io"
	"sync"
)

// Window is the credit that each stream begins with, in bytes.
const Window = 256 << 10

// chunk is the most that one message carries.
const chunk = 64 << 10

// window is a sender's credit.
type window struct {
	mu    sync.Mutex
	free  int
	off   bool // no more limit
	avail *sync.Cond
}

func newWindow(n int) *window {
	w := &window{free: n}
	w.avail = sync.NewCond(&w.mu)
	return w
}

// take waits for credit and takes up to limit bytes of it.
func (w *window) take(limit int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.free <= 0 && !w.off {
		w.avail.Wait()
	}
	if w.off {
		return limit
	}
	n := min(limit, w.free)
	w.free -= n
	return n
}

func (w *window) add(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free += n
	w.avail.Broadcast()
}

// unlimit ends the limit: nobody counts any more.
func (w *window) unlimit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = true
	w.avail.Broadcast()
}

// queue holds received bytes until they are read.
type queue struct {
	mu    sync.Mutex
	limit int
	data  []byte
	err   error // after data
	drop  bool  // nobody reads any more
	avail *sync.Cond
}

func newQueue(limit int) *queue {
	q := &queue{limit: limit}
	q.avail = sync.NewCond(&q.mu)
	return q
}

// put adds bytes and reports whether they were within the limit.
func (q *queue) put(b []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.drop || q.err != nil {
		return true
	}
	if len(q.data)+len(b) > q.limit {
		return false
	}
	q.data = append(q.data, b...)
	q.avail.Broadcast()
	return true
}

// close lets read return err after what is held. The first call counts.
func (q *queue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	q.avail.Broadcast()
}

// discard drops what is held and what comes.
func (q *queue) discard() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop = true
	q.data = nil
	if q.err == nil {
		q.err = io.EOF
	}
	q.avail.Broadcast()
}

// read waits for bytes or the end.
func (q *queue) read(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.data) == 0 && q.err == nil {
		q.avail.Wait()
	}
	if len(q.data) > 0 {
		n := copy(p, q.data)
		q.data = q.data[n:]
		if len(q.data) == 0 {
			q.data = nil
		}
		return n, nil
	}
	return 0, q.err
}
