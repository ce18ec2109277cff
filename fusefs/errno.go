package fusefs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/yaoapp/sbgw/internal/logging"
)

var (
	// errKilled: the caller has SIGKILL pending and waits for the answer only.
	errKilled = errors.New("caller killed")
	// errInterrupted: a wait for a lock was interrupted.
	errInterrupted = errors.New("interrupted")
)

// status is the one place where an error becomes an errno.
func (f *FS) status(op string, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fuse.Status(errno)
	}
	switch {
	case errors.Is(err, errKilled), errors.Is(err, errInterrupted):
		return fuse.EINTR
	case errors.Is(err, errDetached):
		return fuse.Status(syscall.ESTALE)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		f.log.Debug("request gave up", "op", op, logging.Err, err)
	default:
		f.log.Warn("request failed", "op", op, logging.Err, err)
	}
	return fuse.EIO
}

// maxUntold bounds the errors kept for the next barrier.
const maxUntold = 100

// remember keeps an error that no system call reports, for Settle and the list
// of mounts.
func (f *FS) remember(op string, err error) {
	f.log.Warn("error after the call had ended", "op", op, logging.Err, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.untold) >= maxUntold {
		f.dropped++
		return
	}
	f.untold = append(f.untold, fmt.Sprintf("%s: %v", op, err))
}

// Errors lists the errors that no system call reported and no Settle returned.
func (f *FS) Errors() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.untoldLocked()
}

func (f *FS) untoldLocked() []string {
	all := append([]string(nil), f.untold...)
	if f.dropped > 0 {
		all = append(all, fmt.Sprintf("and %d more", f.dropped))
	}
	return all
}

// releaseGrace bounds the wait for the RELEASE that follows the last close(2) of a
// file: the kernel sends it by itself, and tells nobody whether it will.
const releaseGrace = 100 * time.Millisecond

// Settle returns when every acknowledged change is applied at the server, which
// is so when a call returns, and the files closed before are closed there, so
// that they can be executed. The errors that nobody was told are returned, each
// once.
func (f *FS) Settle(ctx context.Context) error {
	grace, cancel := context.WithTimeout(ctx, releaseGrace)
	defer cancel()
	_ = f.waitFor(grace, func() bool { return !f.closingLocked() })
	if err := f.waitFor(ctx, func() bool { return f.releasing == 0 }); err != nil {
		return fmt.Errorf("wait for closed files: %w", err)
	}
	f.mu.Lock()
	all := f.untoldLocked()
	f.untold, f.dropped = nil, 0
	f.mu.Unlock()

	var errs []error
	for _, e := range all {
		errs = append(errs, errors.New(e))
	}
	return errors.Join(errs...)
}

// closingLocked tells whether a RELEASE may be on its way from the kernel.
func (f *FS) closingLocked() bool {
	for _, fl := range f.files {
		if !fl.flushed.IsZero() && time.Since(fl.flushed) < releaseGrace {
			return true
		}
	}
	return false
}

// waitFor returns when ready, called with FS.mu held, says so.
func (f *FS) waitFor(ctx context.Context, ready func() bool) error {
	for {
		f.mu.Lock()
		ok, moved := ready(), f.progress
		f.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		}
	}
}
