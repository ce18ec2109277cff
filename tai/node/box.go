package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/shim"
)

// record is what a box was made of, in box.json.
type record struct {
	Spec      core.BoxSpec
	CreatedAt time.Time
}

const recordFile = "box.json"

// box is a box of this node.
type box struct {
	record

	dir  string
	slot chan struct{} // holds one token while an operation changes the box

	// Guarded by Runtime.mu.
	incarnation core.Incarnation
	status      core.Status
	exit        shim.Exit // of a stopped box
	startedAt   time.Time
	execs       int
	link        *shim.Link    // of a running box
	changed     chan struct{} // closed and replaced on each change
	removed     bool
	proc        *os.Process // the shim, if it is a child of this process
}

func newBox(dir string, rec record) *box {
	return &box{
		record: rec, dir: dir, status: core.StatusCreated,
		slot: make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// acquire takes a box's operation slot and checks the incarnation. The returned
// function gives the slot back.
func (r *Runtime) acquire(ctx context.Context, ref core.BoxRef) (*box, func(), error) {
	r.mu.Lock()
	b := r.boxes[ref.ID]
	r.mu.Unlock()
	if b == nil {
		return nil, nil, fmt.Errorf("%w: box %s", core.ErrNotFound, ref.ID)
	}
	select {
	case b.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	release := func() { <-b.slot }
	if err := r.check(b, ref); err != nil {
		release()
		return nil, nil, err
	}
	return b, release, nil
}

// check tells whether a reference is to the box as it is now.
func (r *Runtime) check(b *box, ref core.BoxRef) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.removed {
		return fmt.Errorf("%w: box %s", core.ErrNotFound, ref.ID)
	}
	if ref.Incarnation != "" && ref.Incarnation != b.incarnation {
		return fmt.Errorf("%w: box %s was started again since", core.ErrConflict, ref.ID)
	}
	return nil
}

// update changes a box and tells everybody.
func (r *Runtime) update(b *box, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
	r.publishLocked(b.Spec.ID)
}

// snapshot returns a box's state.
func (r *Runtime) snapshot(b *box) core.BoxState {
	r.mu.Lock()
	s := core.BoxState{
		ID: b.Spec.ID, Incarnation: b.incarnation, Status: b.status,
		Image: b.Spec.Image, Labels: b.Spec.Labels, Mounts: b.Spec.Mounts,
		CreatedAt: b.CreatedAt, StartedAt: b.startedAt, Network: networkNone,
	}
	if b.status != core.StatusCreated {
		s.ContainerID = string(b.Spec.ID)
	}
	switch b.status {
	case core.StatusRunning:
		s.Execs = b.execs
	case core.StatusStopped:
		s.Reason, s.ExitCode, s.FinishedAt = b.exit.Reason, b.exit.Code, b.exit.FinishedAt
	}
	r.mu.Unlock()
	if s.Status == core.StatusRunning {
		n, err := r.cgroup(b.Spec.ID).Processes()
		if err == nil {
			s.Processes = n
		}
	}
	return s
}

// await returns when a box is not running any more.
func (r *Runtime) await(ctx context.Context, b *box) error {
	for {
		r.mu.Lock()
		running, changed := b.status == core.StatusRunning, b.changed
		r.mu.Unlock()
		if !running {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sameSpec compares what a wire would carry: nil and empty are the same.
func sameSpec(a, b core.BoxSpec) bool { return proto.Equal(boxpb.FromSpec(a), boxpb.FromSpec(b)) }

// Inspect is of core.Backend.
func (r *Runtime) Inspect(_ context.Context, id core.BoxID) (core.BoxState, error) {
	r.mu.Lock()
	b := r.boxes[id]
	r.mu.Unlock()
	if b == nil {
		return core.BoxState{}, fmt.Errorf("%w: box %s", core.ErrNotFound, id)
	}
	return r.snapshot(b), nil
}

// List is of core.Backend.
func (r *Runtime) List(context.Context) ([]core.BoxState, error) {
	r.mu.Lock()
	boxes := make([]*box, 0, len(r.boxes))
	for _, b := range r.boxes {
		boxes = append(boxes, b)
	}
	r.mu.Unlock()
	states := make([]core.BoxState, 0, len(boxes))
	for _, b := range boxes {
		states = append(states, r.snapshot(b))
	}
	return states, nil
}

// recover finds the boxes of an earlier node. One that can't be understood is
// left alone and does not keep the others from being found.
func (r *Runtime) recover() error {
	dir := filepath.Join(r.state, "boxes")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.Name()[0] == '.' { // a create that was cut off before it began
			if err := r.discard(path); err != nil {
				return err
			}
			continue
		}
		var rec record
		if err := shim.ReadFile(filepath.Join(path, recordFile), &rec); err != nil {
			r.log.Error("no box: its record can't be read", logging.Path, path, logging.Err, err)
			continue
		}
		b := newBox(path, rec)
		r.boxes[rec.Spec.ID] = b
		if err := r.find(b); err != nil {
			r.log.Error("state of a box is unknown", logging.Box, rec.Spec.ID, logging.Err, err)
			r.update(b, func() { b.status = core.StatusUnknown })
		}
	}
	return nil
}
