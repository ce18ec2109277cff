package fusefs

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// GetLk tells which lock is in the way of one.
func (f *FS) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	r := f.request(cancel, &in.InHeader, 0)
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		q := lockRequest(in)
		q.Test = true
		var err error
		_, q.Open, err = f.file(r, in.Fh)
		return &volumev1.Request{Op: &volumev1.Request_Lock{Lock: q}}, err
	})
	if err != nil {
		return f.status("getlk", err)
	}
	l := a.GetLock()
	out.Lk = fuse.FileLock{Start: l.GetStart(), End: l.GetEnd(), Typ: l.GetType(), Pid: l.GetPid()}
	return fuse.OK
}

// SetLk takes or gives back a lock without waiting for others.
func (f *FS) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	r := f.request(cancel, &in.InHeader, 0)
	var fl *file
	_, err := f.op(r, false, func() (*volumev1.Request, error) {
		q := lockRequest(in)
		var err error
		fl, q.Open, err = f.file(r, in.Fh)
		return &volumev1.Request{Op: &volumev1.Request_Lock{Lock: q}}, err
	})
	if err == nil {
		f.locked(fl, in)
	}
	return f.status("setlk", err)
}

// SetLkw waits for a lock, until it is interrupted.
func (f *FS) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.status("setlkw", f.lockWait(f.request(cancel, &in.InHeader, 0), in))
}

func (f *FS) lockWait(r request, in *fuse.LkIn) error {
	q := lockRequest(in)
	q.Wait = q.Type != syscall.F_UNLCK
	fl, open, err := f.file(r, in.Fh)
	if err != nil {
		return err
	}
	q.Open = open
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	ch := make(chan outcome, 1)
	f.wg.Go(func() {
		ch <- f.send(ctx, f.vol.Load(), &volumev1.Request{Caller: r.caller, Op: &volumev1.Request_Lock{Lock: q}})
	})
	var o outcome
	interrupted := false
	select {
	case o = <-ch:
	case <-r.interrupted:
		// The server may grant the lock all the same: what it says counts.
		interrupted = true
		stop()
		o = <-ch
	}
	switch {
	case o.err == nil:
		f.locked(fl, in)
		return nil
	case context.Cause(f.ctx) != nil:
		return context.Cause(f.ctx)
	case interrupted && errors.Is(o.err, context.Canceled):
		return errInterrupted
	}
	return o.err
}

func lockRequest(in *fuse.LkIn) *volumev1.Lock {
	kind := volumev1.LockKind_LOCK_KIND_POSIX
	if in.LkFlags&fuse.LK_FLOCK != 0 {
		kind = volumev1.LockKind_LOCK_KIND_FLOCK
	}
	return &volumev1.Lock{Kind: kind, Owner: in.Owner, Type: in.Lk.Typ, Start: in.Lk.Start, End: in.Lk.End, Pid: in.Lk.Pid}
}

// locked remembers that a lock was taken: closing the file has to give it back.
func (f *FS) locked(fl *file, in *fuse.LkIn) {
	if in.Lk.Typ == syscall.F_UNLCK {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.locked = true
	if in.LkFlags&fuse.LK_FLOCK != 0 {
		return
	}
	if fl.node.lockOwners == nil {
		fl.node.lockOwners = map[uint64]bool{}
	}
	fl.node.lockOwners[in.Owner] = true
}
