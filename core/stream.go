package core

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// spoolLimit is how far an unread stream of a running command gets ahead.
const spoolLimit = 256 << 10

// Stream starts a command and returns its streams. A context that ends, or the
// timeout, kills its process group. Streams may be read before and after Wait,
// closed, or left alone: what was written before the end is kept until read. A
// box of policy oneshot is removed after Wait.
func (b *Box) Stream(ctx context.Context, cmd []string, opts ...ExecOption) (*ExecStream, error) {
	o := applied(opts)
	p, err := b.process(ctx, cmd, o)
	if err != nil {
		return nil, fmt.Errorf("exec in box %s: %w", b.r.ID, err)
	}
	s := &stream{p: p, stdout: newSpool(), stderr: newSpool(), done: make(chan struct{}), closed: make(chan struct{})}
	b.m.work.Go(func() { s.stdout.fill(p.Stdout()) })
	b.m.work.Go(func() { s.stderr.fill(p.Stderr()) })
	if !o.openStdin {
		b.m.work.Go(func() {
			p.Stdin().Write(o.stdin) // one that does not want it is no error
			p.Stdin().Close()
		})
	}
	b.m.work.Go(func() { s.finish(ctx, o.timeout) })
	return &ExecStream{
		Stdout: s.stdout, Stderr: s.stderr, Stdin: p.Stdin(), Cancel: p.kill, Resize: p.Resize,
		Wait: func() (int, error) { return s.wait(b) },
	}, nil
}

type stream struct {
	p              *boxProcess
	stdout, stderr *spool
	done           chan struct{}
	closed         chan struct{} // the handle is freed
	timedOut       bool          // before done is closed
}

// finish sees the command to its end, takes in what is left of its output, and
// frees the handle, whether anybody waits or not.
func (s *stream) finish(ctx context.Context, timeout time.Duration) {
	var timer <-chan time.Time
	if timeout > 0 {
		timer = time.After(timeout)
	}
	cancelled := ctx.Done()
	for ended := false; !ended; {
		select {
		case <-s.p.ended:
			ended = true
		case <-cancelled:
			cancelled = nil
			s.p.kill()
		case <-timer:
			s.timedOut = true
			s.p.kill()
		}
	}
	close(s.done)
	s.stdout.unlimit()
	s.stderr.unlimit()
	<-s.stdout.filled
	<-s.stderr.filled
	s.p.Close()
	close(s.closed)
}

func (s *stream) wait(b *Box) (int, error) {
	<-s.done
	exit, err := s.p.Wait()
	if err == nil && s.timedOut {
		err = context.DeadlineExceeded
	}
	if b.r.Policy == OneShot {
		<-s.closed // the box is removed
	}
	if err != nil {
		return exit.Code, fmt.Errorf("exec in box %s: %w", b.r.ID, err)
	}
	return exit.Code, nil
}

// spool is a stream's bytes between the process and its reader: bounded while
// the process runs, all of them after.
type spool struct {
	filled chan struct{} // nothing more will come

	mu      sync.Mutex
	changed *sync.Cond
	data    []byte
	err     error // after data
	free    bool  // no limit
	closed  bool  // the reader is gone: drop
}

func newSpool() *spool {
	s := &spool{filled: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *spool) fill(r io.Reader) {
	defer close(s.filled)
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		s.mu.Lock()
		for len(s.data) >= spoolLimit && !s.free && !s.closed {
			s.changed.Wait()
		}
		if !s.closed {
			s.data = append(s.data, buf[:n]...)
		}
		s.err = err
		s.changed.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *spool) unlimit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = true
	s.changed.Broadcast()
}

// Read implements io.Reader.
func (s *spool) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.data) == 0 && s.err == nil && !s.closed {
		s.changed.Wait()
	}
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	if len(s.data) == 0 {
		return 0, s.err
	}
	n := copy(p, s.data)
	s.data = s.data[n:]
	s.changed.Broadcast()
	return n, nil
}

// Close drops what is held and what comes; the process is not held up by it.
func (s *spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.data = true, nil
	s.changed.Broadcast()
	return nil
}
