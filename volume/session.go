package volume

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	// maxOpens bounds the open files of a session.
	maxOpens = 1 << 16
	// maxAnswers bounds the answers that a session has not acknowledged.
	maxAnswers = 1 << 16
	// maxWaiting bounds the requests that may wait for something else than the
	// disk: locks and barriers.
	maxWaiting = 4096
)

// session is one client's state, which outlives its connections by the lease.
type session struct {
	id     string
	client string
	v      *volume
	log    *slog.Logger
	first  uint64 // the event it began at

	ctx    context.Context // ends with the session
	cancel context.CancelFunc
	lease  time.Duration
	seen   atomic.Int64 // last frame, in Unix nanoseconds
	expiry *time.Timer
	// running counts ops, so that an end waits for them.
	running sync.WaitGroup
	over    chan struct{} // closed when the end is done

	mu      sync.Mutex
	ended   bool
	opens   map[uint64]*open
	made    uint64
	locks   map[lockKey]*lockOwner
	answers map[uint64]*answer
	acked   uint64
	waits   map[uint64]context.CancelFunc // by request id
	control *channel

	// refs counts what the client was given of each object; guarded by volume.mu.
	refs map[*object]uint64
}

// answer is the reply of an op that must not run twice.
type answer struct {
	done  chan struct{} // closed when reply is set
	reply *volumev1.Reply
}

func newSession(v *volume, client []byte, lease time.Duration, onExpiry func(*session)) *session {
	s := &session{
		id: rand.Text(), client: string(client), v: v, log: v.log, lease: lease,
		over: make(chan struct{}), first: v.feed.number(),
		opens: map[uint64]*open{}, locks: map[lockKey]*lockOwner{}, answers: map[uint64]*answer{},
		waits: map[uint64]context.CancelFunc{}, refs: map[*object]uint64{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.touch()
	s.expiry = time.AfterFunc(lease, func() { s.checkLease(onExpiry) })
	return s
}

// touch renews the lease.
func (s *session) touch() { s.seen.Store(time.Now().UnixNano()) }

func (s *session) checkLease(onExpiry func(*session)) {
	left := s.lease - time.Since(time.Unix(0, s.seen.Load()))
	if left <= 0 {
		onExpiry(s)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.expiry.Reset(left)
	}
}

// begin registers a running op. False: the session has ended.
func (s *session) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.running.Add(1)
	return true
}

// end closes what the client had open, gives back its references, and waits for
// its ops. A second call waits for the first.
func (s *session) end() {
	s.mu.Lock()
	again := s.ended
	s.ended = true
	s.mu.Unlock()
	if again {
		<-s.over
		return
	}
	defer close(s.over)
	s.expiry.Stop()
	s.cancel()
	s.running.Wait()
	for _, l := range s.locks {
		l.file.drop()
	}
	for _, o := range s.opens {
		o.close()
	}
	s.v.leave(s)
}

// leave gives back the references of an ended session.
func (v *volume) leave(s *session) {
	v.mu.Lock()
	var gone []*object
	for o := range s.refs {
		if v.unuseLocked(o) {
			gone = append(gone, o)
		}
	}
	s.refs = nil
	delete(v.sessions, s)
	v.mu.Unlock()
	for _, o := range gone {
		v.watch.forget(o)
	}
}

// find returns the object of a handle, held for the caller. ESTALE: the session
// has no such handle.
func (s *session) find(h []byte) (*object, error) {
	if len(h) != len(handle{}) {
		return nil, syscall.ESTALE
	}
	s.v.mu.Lock()
	defer s.v.mu.Unlock()
	o := s.v.handles[handle(h)]
	if o == nil || o != s.v.root && s.refs[o] == 0 {
		return nil, syscall.ESTALE
	}
	o.users++
	return o, nil
}

// give makes the message of an object of status st and counts the reference. The
// caller holds the object.
func (s *session) give(o *object, st *unix.Statx_t) *volumev1.Object {
	v := s.v
	ver := v.observe(o, st, s)
	v.mu.Lock()
	if o != v.root && s.refs != nil {
		if s.refs[o] == 0 {
			o.users++
		}
		s.refs[o]++
	}
	parent := o.parent
	v.mu.Unlock()

	if o.isDir() {
		parent = o
	}
	return &volumev1.Object{
		Handle: o.handle[:], Identity: o.id.message(), Attr: attrMessage(st), Version: ver[:],
		Racy: racy(st, time.Now()) || !v.watch.covers(parent),
	}
}

// forget takes n references of a handle back.
func (s *session) forget(h []byte, n uint64) {
	if len(h) != len(handle{}) {
		return
	}
	v := s.v
	v.mu.Lock()
	o := v.handles[handle(h)]
	gone := false
	if o != nil && s.refs[o] > 0 && n > 0 {
		if s.refs[o] > n {
			s.refs[o] -= n
		} else {
			delete(s.refs, o)
			gone = v.unuseLocked(o)
		}
	}
	v.mu.Unlock()
	if gone {
		v.watch.forget(o)
	}
}

// once returns the answer of an op id: first is true for the caller that has to
// run it, the others wait for done. The error is EINVAL for an id that was
// acknowledged, and ENOBUFS for a client that acknowledges nothing.
func (s *session) once(opID uint64) (a *answer, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if opID <= s.acked {
		return nil, false, syscall.EINVAL
	}
	if a := s.answers[opID]; a != nil {
		return a, false, nil
	}
	if len(s.answers) >= maxAnswers {
		return nil, false, syscall.ENOBUFS
	}
	a = &answer{done: make(chan struct{})}
	s.answers[opID] = a
	return a, true, nil
}

// acknowledge forgets the answers of op ids up to n.
func (s *session) acknowledge(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n <= s.acked {
		return
	}
	if n-s.acked < uint64(len(s.answers)) {
		for id := s.acked + 1; id <= n; id++ {
			delete(s.answers, id)
		}
	} else {
		for id := range s.answers {
			if id <= n {
				delete(s.answers, id)
			}
		}
	}
	s.acked = n
}

// wait returns a context that ends by Cancel of the request or with the session.
func (s *session) wait(request uint64) (context.Context, context.CancelFunc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waits) >= maxWaiting {
		return nil, nil, syscall.ENOLCK
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.waits[request] = cancel
	return ctx, func() {
		cancel()
		s.mu.Lock()
		delete(s.waits, request)
		s.mu.Unlock()
	}, nil
}

// cancelWait ends the wait of a request, if it still waits.
func (s *session) cancelWait(request uint64) {
	s.mu.Lock()
	cancel := s.waits[request]
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
