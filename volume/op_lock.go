package volume

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

const (
	// A lock that waits is tried again after these; the kernel's own waiting could
	// not be cancelled.
	minLockPoll = time.Millisecond
	maxLockPoll = 20 * time.Millisecond
	// maxLocks bounds the lock owners of a session.
	maxLocks = 10_000

	maxLockEnd = 1<<63 - 1
)

// lockKey is one owner of locks on one object.
type lockKey struct {
	object *object
	kind   volumev1.LockKind
	owner  uint64
}

// lockOwner has an open file description of its own, to which the kernel ties
// open-file-description locks and flock(2) locks. So two owners exclude each
// other, and processes in the box, who see the same file, as well.
type lockOwner struct {
	file *file
	open uint64 // through which it was last used
	pid  uint32
}

func (o *op) lock(r *volumev1.Lock) error {
	h, err := o.regular(r.GetOpen())
	if err != nil {
		return err
	}
	key := lockKey{h.object, r.GetKind(), r.GetOwner()}
	if r.GetType() == unix.F_UNLCK && !r.GetTest() && wholeFile(r) {
		o.s.unlockOwner(key)
		return nil
	}
	l, err := o.s.lockOwner(key, h, r.GetPid())
	if err != nil {
		return err
	}
	defer l.drop()
	var try func() error
	switch r.GetKind() {
	case volumev1.LockKind_LOCK_KIND_POSIX:
		return o.lockRange(l, key, r)
	case volumev1.LockKind_LOCK_KIND_FLOCK:
		how := map[uint32]int{unix.F_RDLCK: unix.LOCK_SH, unix.F_WRLCK: unix.LOCK_EX, unix.F_UNLCK: unix.LOCK_UN}
		op, ok := how[r.GetType()]
		if !ok || r.GetTest() {
			return syscall.EINVAL
		}
		try = func() error { return unix.Flock(l.fd, op|unix.LOCK_NB) }
	default:
		return syscall.EINVAL
	}
	return o.poll(r.GetWait(), try)
}

func wholeFile(r *volumev1.Lock) bool {
	return r.GetKind() == volumev1.LockKind_LOCK_KIND_FLOCK || r.GetStart() == 0 && r.GetEnd() >= maxLockEnd
}

// lockRange sets, clears or tests a POSIX lock.
func (o *op) lockRange(l *file, key lockKey, r *volumev1.Lock) error {
	if r.GetStart() > r.GetEnd() || r.GetStart() > maxLockEnd {
		return syscall.EINVAL
	}
	lk := unix.Flock_t{Whence: unix.SEEK_SET, Start: int64(r.GetStart())}
	switch r.GetType() {
	case unix.F_RDLCK, unix.F_WRLCK, unix.F_UNLCK:
		lk.Type = int16(r.GetType())
	default:
		return syscall.EINVAL
	}
	if r.GetEnd() < maxLockEnd {
		lk.Len = int64(r.GetEnd()-r.GetStart()) + 1
	}
	if !r.GetTest() {
		return o.poll(r.GetWait(), func() error {
			try := lk
			return unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &try)
		})
	}
	if err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_GETLK, &lk); err != nil {
		return err
	}
	out := &volumev1.LockResult{Type: uint32(lk.Type)}
	if lk.Type != unix.F_UNLCK {
		out.Start, out.End = uint64(lk.Start), maxLockEnd
		if lk.Len > 0 {
			out.End = uint64(lk.Start + lk.Len - 1)
		}
		out.Pid = o.s.v.lockPID(key, lk.Pid)
	}
	o.reply.Result = &volumev1.Reply_Lock{Lock: out}
	return nil
}

// poll tries until the lock is granted. EINTR: the request was cancelled.
func (o *op) poll(wait bool, try func() error) error {
	err := try()
	if err == unix.EACCES {
		err = unix.EAGAIN // fcntl(2): either is said
	}
	if err != unix.EAGAIN || !wait {
		return err
	}
	ctx, stop, err := o.s.wait(o.r.GetId())
	if err != nil {
		return err
	}
	defer stop()
	for pause := minLockPoll; ; pause = min(2*pause, maxLockPoll) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return syscall.EINTR
		case <-timer.C:
		}
		if err := try(); err != unix.EAGAIN && err != unix.EACCES {
			return err
		}
	}
}

// lockOwner returns the descriptor of an owner, for the caller to drop, and makes
// it where there is none.
func (s *session) lockOwner(k lockKey, h *open, pid uint32) (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[k]; l != nil {
		l.open, l.pid = h.id, pid
		return l.file.hold(), nil
	}
	if len(s.locks) >= maxLocks {
		return nil, syscall.ENOLCK
	}
	// Both ways where possible: the owner may use other descriptors of the file.
	fd, err := reopen(h.file.fd, unix.O_RDWR)
	if err != nil {
		fd, err = reopen(h.file.fd, h.access)
	}
	if err != nil {
		return nil, err
	}
	l := &lockOwner{file: newFile(fd), open: h.id, pid: pid}
	s.locks[k] = l
	return l.file.hold(), nil
}

// unlockOwner gives all locks of an owner back.
func (s *session) unlockOwner(k lockKey) {
	s.mu.Lock()
	l := s.locks[k]
	delete(s.locks, k)
	s.mu.Unlock()
	if l != nil {
		l.unlock()
	}
}

// unlock ends the locks even while another op still holds the descriptor.
func (l *lockOwner) unlock() {
	whole := unix.Flock_t{Type: unix.F_UNLCK, Whence: unix.SEEK_SET}
	unix.FcntlFlock(uintptr(l.file.fd), unix.F_OFD_SETLK, &whole)
	unix.Flock(l.file.fd, unix.LOCK_UN)
	l.file.drop()
}

// unlockOpen ends the flocks made through an open that is being released, and,
// with the last open of an object, all locks on it.
func (s *session) unlockOpen(h *open) {
	s.v.mu.Lock()
	last := true
	for _, other := range h.object.opens {
		last = last && (other == h || other.session != s)
	}
	s.v.mu.Unlock()
	var gone []*lockOwner
	s.mu.Lock()
	for k, l := range s.locks {
		if k.object == h.object && (last || k.kind == volumev1.LockKind_LOCK_KIND_FLOCK && l.open == h.id) {
			gone = append(gone, l)
			delete(s.locks, k)
		}
	}
	s.mu.Unlock()
	for _, l := range gone {
		l.unlock()
	}
}

// lockPID is the process to name for a conflicting lock: the kernel's, or, where
// the kernel says -1 because the lock is of one of our descriptors, another
// owner's of the object.
func (v *volume) lockPID(k lockKey, pid int32) uint32 {
	if pid >= 0 {
		return uint32(pid)
	}
	v.mu.Lock()
	sessions := make([]*session, 0, len(v.sessions))
	for s := range v.sessions {
		sessions = append(sessions, s)
	}
	v.mu.Unlock()
	for _, s := range sessions {
		s.mu.Lock()
		for other, l := range s.locks {
			if other.object == k.object && other.kind == k.kind && other.owner != k.owner {
				pid := l.pid
				s.mu.Unlock()
				return pid
			}
		}
		s.mu.Unlock()
	}
	return 0
}
