// Package steady keeps a core.Backend valid while what is behind it is replaced:
// a plugin process that is started again, a node that comes back. Every call is
// made on the backend that is there now.
package steady

import (
	"context"
	"errors"
	"time"

	"github.com/yaoapp/sbgw/core"
)

// Source brings the backend that is there now. Its methods may be called
// concurrently.
type Source interface {
	// Acquire returns the present backend. It waits for one that is on its way,
	// within the context and bounds of its own; its errors are what the caller
	// sees. With after it is one that came later than that one.
	Acquire(ctx context.Context, after core.Backend) (core.Backend, error)
	// Lost tells that a call on b ended with an error of the kind Gone. It must
	// not block.
	Lost(b core.Backend, err error)
}

// Backend is a core.Backend over a Source. It has a method for every ability, so
// that core.Has goes by what the backend behind it declares; a call for which
// that one has no method is core.ErrUnsupported.
type Backend struct {
	source Source
	gone   error
}

var (
	_ core.Backend       = (*Backend)(nil)
	_ core.Execer        = (*Backend)(nil)
	_ core.VolumeOpener  = (*Backend)(nil)
	_ core.VolumeRemover = (*Backend)(nil)
)

// New returns the backend of a source. An error of kind gone is one of a backend
// that was lost: idempotent calls are then made once more on its successor.
func New(s Source, gone error) *Backend { return &Backend{source: s, gone: gone} }

// once makes one call and reports a loss.
func (b *Backend) once(ctx context.Context, after core.Backend, f func(core.Backend) error) (core.Backend, error) {
	now, err := b.source.Acquire(ctx, after)
	if err != nil {
		return nil, err
	}
	if err = f(now); err != nil && errors.Is(err, b.gone) {
		b.source.Lost(now, err)
		return now, err
	}
	return nil, err
}

// call makes an idempotent call, twice if the backend is lost during the first.
func (b *Backend) call(ctx context.Context, f func(core.Backend) error) error {
	lost, err := b.once(ctx, nil, f)
	if lost == nil || ctx.Err() != nil {
		return err
	}
	_, err = b.once(ctx, lost, f)
	return err
}

// Describe implements core.Backend.
func (b *Backend) Describe(ctx context.Context) (info core.BackendInfo, err error) {
	err = b.call(ctx, func(n core.Backend) (err error) {
		info, err = n.Describe(ctx)
		return err
	})
	return info, err
}

// Create implements core.Backend.
func (b *Backend) Create(ctx context.Context, s core.BoxSpec) (st core.BoxState, err error) {
	err = b.call(ctx, func(n core.Backend) (err error) {
		st, err = n.Create(ctx, s)
		return err
	})
	return st, err
}

// Start implements core.Backend.
func (b *Backend) Start(ctx context.Context, r core.BoxRef) (st core.BoxState, err error) {
	err = b.call(ctx, func(n core.Backend) (err error) {
		st, err = n.Start(ctx, r)
		return err
	})
	return st, err
}

// Stop implements core.Backend.
func (b *Backend) Stop(ctx context.Context, r core.BoxRef, grace time.Duration) (st core.BoxState, err error) {
	err = b.call(ctx, func(n core.Backend) (err error) {
		st, err = n.Stop(ctx, r, grace)
		return err
	})
	return st, err
}

// Remove implements core.Backend.
func (b *Backend) Remove(ctx context.Context, r core.BoxRef) error {
	return b.call(ctx, func(n core.Backend) error { return n.Remove(ctx, r) })
}

// Inspect implements core.Backend.
func (b *Backend) Inspect(ctx context.Context, id core.BoxID) (st core.BoxState, err error) {
	err = b.call(ctx, func(n core.Backend) (err error) {
		st, err = n.Inspect(ctx, id)
		return err
	})
	return st, err
}

// List implements core.Backend.
func (b *Backend) List(ctx context.Context) (states []core.BoxState, err error) {
	err = b.call(ctx, func(n core.Backend) (err error) {
		states, err = n.List(ctx)
		return err
	})
	return states, err
}

// Watch implements core.Backend. It ends when the backend is lost: only a new
// Watch, which begins with every state, can tell what went missing in between.
func (b *Backend) Watch(ctx context.Context, from core.Cursor, f func(core.BoxEvent) error) error {
	_, err := b.once(ctx, nil, func(n core.Backend) error { return n.Watch(ctx, from, f) })
	return err
}

// Exec implements core.Execer. It is never repeated: the lost backend may have
// started the process.
func (b *Backend) Exec(ctx context.Context, r core.BoxRef, s core.ExecSpec) (p core.Process, err error) {
	_, err = b.once(ctx, nil, func(n core.Backend) (err error) {
		x, ok := n.(core.Execer)
		if !ok {
			return core.Unsupported(string(core.AbilityExec))
		}
		p, err = x.Exec(ctx, r, s)
		return err
	})
	return p, err
}

// OpenVolume implements core.VolumeOpener.
func (b *Backend) OpenVolume(ctx context.Context, s core.VolumeSession, create bool) (e core.Endpoint, err error) {
	err = b.call(ctx, func(n core.Backend) (err error) {
		v, ok := n.(core.VolumeOpener)
		if !ok {
			return core.Unsupported(string(core.AbilityVolume))
		}
		e, err = v.OpenVolume(ctx, s, create)
		return err
	})
	return e, err
}

// RemoveVolume implements core.VolumeRemover.
func (b *Backend) RemoveVolume(ctx context.Context, s core.VolumeSession) error {
	return b.call(ctx, func(n core.Backend) error {
		v, ok := n.(core.VolumeRemover)
		if !ok {
			return core.Unsupported(string(core.AbilityVolumeRemoval))
		}
		return v.RemoveVolume(ctx, s)
	})
}
