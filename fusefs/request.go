package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
	"github.com/yaoapp/sbgw/volume"
)

// A caller waits in uninterruptible sleep until it is answered, and the kernel
// sends one INTERRUPT only, for whichever signal comes first. So an INTERRUPT
// cancels nothing (programs in Go get one with every preemption), and callers of
// slow requests are looked at: with SIGKILL pending they get EINTR.
const (
	killPollAfter = 300 * time.Millisecond
	killPollEvery = 250 * time.Millisecond
)

// request is one request of the kernel.
type request struct {
	caller      *volumev1.Caller
	tid         uint32
	interrupted <-chan struct{}
}

func (f *FS) request(cancel <-chan struct{}, h *fuse.InHeader, umask uint32) request {
	return request{
		caller:      &volumev1.Caller{Uid: h.Uid, Gid: h.Gid, Umask: umask, Squash: f.opts.Squash},
		tid:         h.Pid,
		interrupted: cancel,
	}
}

// outcome is what a volume said.
type outcome struct {
	reply *volumev1.Reply
	err   error
}

// The states of a call: who takes the outcome.
const (
	callRunning int32 = iota
	callDone          // the handler takes it
	callLeft          // the handler is gone: the call cleans up itself
)

// do sends q and waits for the reply, the caller's death or the mount's end. A
// call that is left behind goes on at the server; what it made there is given
// back, and an error of a change is remembered.
func (f *FS) do(r request, q *volumev1.Request) (*volumev1.Reply, error) {
	b := f.vol.Load()
	if b == nil {
		return nil, syscall.EIO
	}
	if err := context.Cause(f.ctx); err != nil {
		return nil, err
	}
	q.Caller = r.caller
	var state atomic.Int32
	ch := make(chan outcome, 1)
	f.wg.Go(func() {
		o := f.send(f.ctx, b, q)
		if state.CompareAndSwap(callRunning, callDone) {
			ch <- o
			return
		}
		f.discard(q, o)
	})
	err := f.await(r, ch)
	if err == nil || !state.CompareAndSwap(callRunning, callLeft) {
		o := <-ch
		return o.reply, o.err
	}
	return nil, err
}

// await returns when an outcome is there to be taken (nil), or why nobody waits
// for it any more. The outcome itself stays in the channel.
func (f *FS) await(r request, ch chan outcome) error {
	t := time.NewTimer(killPollAfter)
	defer t.Stop()
	for {
		select {
		case o := <-ch:
			ch <- o
			return nil
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		case <-t.C:
			if f.doomed(r) {
				return errKilled
			}
			t.Reset(killPollEvery)
		}
	}
}

func (f *FS) send(ctx context.Context, b *binding, q *volumev1.Request) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			f.log.Error("panic in a call to the volume", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			o = outcome{err: syscall.EIO}
		}
	}()
	reply, err := b.Do(ctx, q)
	return outcome{reply, err}
}

// doomed tells whether the caller of r only waits to die. A caller of another
// pid namespace has no number here: then an INTERRUPT while the server does not
// answer is taken for it.
func (f *FS) doomed(r request) bool {
	if r.tid != 0 {
		return killPending(r.tid)
	}
	select {
	case <-r.interrupted:
		return !f.Up()
	default:
		return false
	}
}

// killPending reads proc(5) status. A default-action SIGINT or SIGTERM shows as
// SIGKILL there too, as the kernel turns it into a group exit.
func killPending(tid uint32) bool {
	data, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	if err != nil {
		return false
	}
	const sigkill = 1 << (uint(syscall.SIGKILL) - 1)
	for line := range bytes.Lines(data) {
		set, ok := bytes.CutPrefix(line, []byte("SigPnd:"))
		if !ok {
			set, ok = bytes.CutPrefix(line, []byte("ShdPnd:"))
		}
		if !ok {
			continue
		}
		mask, err := strconv.ParseUint(string(bytes.TrimSpace(set)), 16, 64)
		if err == nil && mask&sigkill != 0 {
			return true
		}
	}
	return false
}

// discard gives back what a call made that nobody waits for.
func (f *FS) discard(q *volumev1.Request, o outcome) {
	if o.err != nil {
		if changes(q) && !errors.Is(o.err, context.Canceled) {
			f.remember(opName(q), fmt.Errorf("outcome unknown, the caller was killed: %w", o.err))
		}
	}
	// The server takes the versions in the reply for known and reports no change
	// up to them, so they are noted even so.
	f.note(answer{o.reply, f.currentEpoch()})
	if open := o.reply.GetOpen().GetOpen(); open != 0 {
		f.release(open)
	}
}

// release gives back an open of the server. No program waits for it, but Settle
// does, as a file open for writing can't be executed. A lost session has
// released its opens already.
func (f *FS) release(open uint64) {
	f.mu.Lock()
	f.releasing++
	f.mu.Unlock()
	q := &volumev1.Request{Op: &volumev1.Request_Release{Release: &volumev1.Release{Opens: []uint64{open}}}}
	f.send(f.ctx, f.vol.Load(), q)
	f.mu.Lock()
	f.releasing--
	f.wakeLocked()
	f.mu.Unlock()
}

// op sends the request that build makes. build runs again, once, when the
// session was lost in between: handles then are reclaimed ones. What can't be
// repeated is EIO then, unless the server has refused it for its old handles.
func (f *FS) op(r request, repeatable bool, build func() (*volumev1.Request, error)) (answer, error) {
	for attempt := 0; ; attempt++ {
		epoch := f.syncSession()
		q, err := build()
		if err != nil {
			return answer{}, err
		}
		reply, err := f.do(r, q)
		if err == nil {
			return answer{reply, epoch}, nil
		}
		moved := f.syncSession() != epoch
		lost := errors.Is(err, volume.ErrSessionLost) || moved && errors.Is(err, fs.ErrClosed)
		refused := moved && (errors.Is(err, syscall.ESTALE) || errors.Is(err, syscall.EBADF))
		if attempt == 0 && (refused || lost && repeatable) {
			continue
		}
		if lost {
			return answer{}, fmt.Errorf("%s: outcome unknown after a lost session: %w", opName(q), syscall.EIO)
		}
		return answer{}, err
	}
}

func (f *FS) currentEpoch() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch
}

// changes tells whether q changes the volume.
func changes(q *volumev1.Request) bool {
	switch op := q.GetOp().(type) {
	case *volumev1.Request_SetAttr, *volumev1.Request_Write, *volumev1.Request_MakeNode, *volumev1.Request_Symlink,
		*volumev1.Request_Link, *volumev1.Request_Rename, *volumev1.Request_Unlink, *volumev1.Request_Fallocate,
		*volumev1.Request_CopyRange, *volumev1.Request_SetXattr, *volumev1.Request_RemoveXattr, *volumev1.Request_Commit:
		return true
	case *volumev1.Request_OpenAt:
		return op.OpenAt.GetFlags()&(syscall.O_CREAT|syscall.O_TRUNC) != 0
	}
	return false
}

// opName names an operation for logs and remembered errors.
func opName(q *volumev1.Request) string {
	m := q.ProtoReflect()
	fd := m.WhichOneof(m.Descriptor().Oneofs().ByName("op"))
	if fd == nil {
		return "request"
	}
	return string(fd.Name())
}
