package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/shim"
)

// endTimeout bounds what follows on the end of a box's main process.
const endTimeout = 30 * time.Second

// Create is of core.Backend.
func (r *Runtime) Create(ctx context.Context, s core.BoxSpec) (core.BoxState, error) {
	if err := checkSpec(s); err != nil {
		return core.BoxState{}, err
	}
	b, release, err := r.claim(ctx, s)
	if err != nil {
		return core.BoxState{}, err
	}
	defer release()
	if !sameSpec(b.Spec, s) {
		return core.BoxState{}, fmt.Errorf("%w: a box %s of another specification exists", core.ErrConflict, s.ID)
	}
	r.mu.Lock()
	fresh := b.status == core.StatusCreated
	r.mu.Unlock()
	if s.NotStarted || !fresh {
		return r.snapshot(b), nil
	}
	if err := r.launch(ctx, b); err != nil {
		err = fmt.Errorf("start box %s: %w", s.ID, err)
		return core.BoxState{}, errors.Join(err, r.deleteContainer(s.ID), r.erase(b))
	}
	return r.snapshot(b), nil
}

// claim returns the box of a specification's id with its slot taken, and makes it
// if there is none.
func (r *Runtime) claim(ctx context.Context, s core.BoxSpec) (*box, func(), error) {
	for {
		b, release, err := r.acquire(ctx, core.BoxRef{ID: s.ID})
		if !errors.Is(err, core.ErrNotFound) {
			return b, release, err
		}
		if _, err := r.binds(s); err != nil {
			return nil, nil, err
		}
		if err := r.record(s); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, nil, fmt.Errorf("create box %s: %w", s.ID, err)
		}
	}
}

// record makes a box's directory, whole or not at all, and the box.
func (r *Runtime) record(s core.BoxSpec) error {
	boxes := filepath.Join(r.state, "boxes")
	temp, err := os.MkdirTemp(boxes, ".new-")
	if err != nil {
		return err
	}
	rec := record{Spec: s, CreatedAt: time.Now()}
	err = shim.WriteFile(filepath.Join(temp, recordFile), rec)
	dir := filepath.Join(boxes, string(s.ID))
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.boxes[s.ID] != nil {
		err = fs.ErrExist
	}
	if err == nil {
		err = os.Rename(temp, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	b := newBox(dir, rec)
	r.boxes[s.ID] = b
	r.publishLocked(s.ID)
	return nil
}

// launch starts a box that does not run. The caller holds its slot.
func (r *Runtime) launch(ctx context.Context, b *box) error {
	if r.life.Err() != nil {
		return errClosed
	}
	binds, err := r.binds(b.Spec)
	if err != nil {
		return err
	}
	cfg := shim.Config{
		Incarnation: core.Incarnation(rand.Text()), Spec: b.Spec,
		Runtime: r.oci.path, RuntimeRoot: r.runtimeRoot(), Tool: r.tool,
		Cgroup: r.cgroup(b.Spec.ID), Host: r.host, Binds: binds, Hide: r.hide,
	}
	if err := shim.WriteConfig(b.dir, cfg); err != nil {
		return err
	}
	began := time.Now()
	proc, err := shim.Spawn(ctx, b.dir, r.tool)
	if err != nil {
		return err
	}
	r.mu.Lock()
	b.proc = proc
	r.mu.Unlock()
	r.log.Info("box started", logging.Box, b.Spec.ID, logging.Duration, time.Since(began))
	err = r.find(b)
	r.mu.Lock()
	running := b.status == core.StatusRunning
	r.mu.Unlock()
	if !running { // a main process that ended at once; nobody follows the shim
		r.reapShim(b)
	}
	return err
}

// Start is of core.Backend.
func (r *Runtime) Start(ctx context.Context, ref core.BoxRef) (core.BoxState, error) {
	b, release, err := r.acquire(ctx, ref)
	if err != nil {
		return core.BoxState{}, err
	}
	defer release()
	r.mu.Lock()
	running := b.status == core.StatusRunning
	r.mu.Unlock()
	if !running {
		if err := r.launch(ctx, b); err != nil {
			return core.BoxState{}, errors.Join(fmt.Errorf("start box %s: %w", ref.ID, err), r.find(b))
		}
	}
	return r.snapshot(b), nil
}

// Stop is of core.Backend.
func (r *Runtime) Stop(ctx context.Context, ref core.BoxRef, grace time.Duration) (core.BoxState, error) {
	b, release, err := r.acquire(ctx, ref)
	if err != nil {
		return core.BoxState{}, err
	}
	defer release()
	if err := r.end(ctx, b, grace); err != nil {
		return core.BoxState{}, fmt.Errorf("stop box %s: %w", ref.ID, err)
	}
	return r.snapshot(b), nil
}

// end ends a box's main process, if it runs, and all that goes with it.
func (r *Runtime) end(ctx context.Context, b *box, grace time.Duration) error {
	r.mu.Lock()
	link := b.link
	r.mu.Unlock()
	if link == nil {
		return nil
	}
	if err := link.Stop(max(grace, 0)); err != nil {
		// The shim is gone; whoever follows it sets the state.
		r.log.Warn("stop box", logging.Box, b.Spec.ID, logging.Err, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, grace+endTimeout,
		fmt.Errorf("%w: the box does not end", core.ErrUnavailable))
	defer cancel()
	return r.await(ctx, b)
}

// Remove is of core.Backend.
func (r *Runtime) Remove(ctx context.Context, ref core.BoxRef) error {
	b, release, err := r.acquire(ctx, ref)
	if errors.Is(err, core.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	if err := r.end(ctx, b, 0); err != nil {
		return fmt.Errorf("remove box %s: %w", ref.ID, err)
	}
	if err := r.erase(b); err != nil {
		return fmt.Errorf("remove box %s: %w", ref.ID, err)
	}
	return nil
}

// erase deletes a box that does not run. The caller holds its slot.
func (r *Runtime) erase(b *box) error {
	if err := r.discard(b.dir); err != nil {
		return err
	}
	r.update(b, func() {
		b.removed = true
		delete(r.boxes, b.Spec.ID)
	})
	return nil
}

func (r *Runtime) runtimeRoot() string { return filepath.Join(r.state, "runc") }
