package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/containerd/go-runc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/shim"
)

const (
	// cleanTimeout bounds the removal of a container whose shim died.
	cleanTimeout = 20 * time.Second
	// cgroupTimeout bounds the wait for killed processes to leave a cgroup.
	cgroupTimeout = 2 * time.Second
)

// find sets a box's state from what its directory and its shim say, and follows
// the shim if there is one.
func (r *Runtime) find(b *box) error {
	cfg, err := shim.ReadConfig(b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		r.update(b, func() { b.status = core.StatusCreated })
		return nil
	}
	if err != nil {
		return err
	}
	link, err := shim.Await(r.life, b.dir)
	if err == nil {
		if status, err := link.Next(); err == nil {
			r.follow(b, link, status)
			return nil
		}
		link.Close()
	}
	return r.bury(b, cfg.Incarnation)
}

// follow takes a living shim's first status and all that come after.
func (r *Runtime) follow(b *box, link *shim.Link, first shim.Status) {
	r.apply(b, link, first)
	r.wg.Go(func() {
		defer link.Close()
		status := first
		var err error
		for err == nil && status.Exit == nil {
			if status, err = link.Next(); err == nil {
				r.apply(b, link, status)
			}
		}
		if err != nil && r.life.Err() == nil {
			r.log.Error("shim died", logging.Box, b.Spec.ID, logging.Err, err)
			if err := r.bury(b, first.State.Incarnation); err != nil {
				r.log.Error("clean up after a shim", logging.Box, b.Spec.ID, logging.Err, err)
				r.update(b, func() { b.status, b.link = core.StatusUnknown, nil })
			}
		}
		r.reapShim(b)
	})
}

func (r *Runtime) apply(b *box, link *shim.Link, s shim.Status) {
	r.update(b, func() {
		b.incarnation, b.startedAt, b.execs = s.State.Incarnation, s.State.StartedAt, s.Execs
		b.status, b.link = core.StatusRunning, link
		if r.life.Err() != nil { // letGo may have been here already
			link.Close()
		}
		if s.Exit != nil {
			b.status, b.exit, b.link = core.StatusStopped, *s.Exit, nil
		}
	})
}

// reapShim waits for a shim that is a child of this process and about to end.
func (r *Runtime) reapShim(b *box) {
	r.mu.Lock()
	proc := b.proc
	b.proc = nil
	r.mu.Unlock()
	if proc != nil && r.life.Err() == nil {
		proc.Wait()
	}
}

// bury sets the state of a box without a shim: as the shim left it, or, if it
// died, after killing what it watched over.
func (r *Runtime) bury(b *box, i core.Incarnation) error {
	exit, err := shim.ReadExit(b.dir)
	if err == nil && exit.Incarnation == i {
		state, _ := shim.ReadState(b.dir)
		r.update(b, func() {
			b.incarnation, b.startedAt, b.link = i, state.StartedAt, nil
			b.status, b.exit = core.StatusStopped, exit
		})
		return nil
	}
	state, err := shim.ReadState(b.dir)
	ran := err == nil && state.Incarnation == i
	exit = shim.Exit{Incarnation: i, Reason: core.ReasonUnknown, FinishedAt: time.Now()}
	if ran && state.Alive() {
		exit.Reason = core.ReasonNodeLost
	}
	if err := r.deleteContainer(b.Spec.ID); err != nil {
		return err
	}
	if ran {
		err = shim.WriteExit(b.dir, exit)
	} else {
		err = shim.Forget(b.dir) // it was never started
	}
	r.update(b, func() {
		b.link = nil
		if !ran {
			b.status = core.StatusCreated
			return
		}
		b.incarnation, b.startedAt, b.status, b.exit = i, state.StartedAt, core.StatusStopped, exit
	})
	return err
}

// deleteContainer kills and removes a container that has no shim.
func (r *Runtime) deleteContainer(id core.BoxID) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	rc := &runc.Runc{Command: r.oci.path, Root: r.runtimeRoot()}
	if err := rc.Delete(ctx, string(id), &runc.DeleteOpts{Force: true}); err != nil {
		return fmt.Errorf("delete container: %w", err)
	}
	if err := r.cgroup(id).RemoveWithin(cgroupTimeout); err != nil {
		r.log.Warn("remove cgroup", logging.Box, id, logging.Err, err) // an empty one harms nobody
	}
	return nil
}
