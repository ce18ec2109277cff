package node

import (
	"context"
	"slices"
	"strconv"

	"github.com/yaoapp/sbgw/core"
)

// watcher is one reader of the feed. It holds no events but the ids of boxes that
// changed since the reader looked, so a slow reader costs nothing and misses
// nothing but states in between.
type watcher struct {
	wake chan struct{} // has a token when there is something

	// Guarded by Runtime.mu.
	changed []core.BoxID
}

func (r *Runtime) publishLocked(id core.BoxID) {
	r.cursor++
	for w := range r.watchers {
		if !slices.Contains(w.changed, id) {
			w.changed = append(w.changed, id)
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Watch is of core.Backend. Every feed begins with the present states, wherever
// the cursor was.
func (r *Runtime) Watch(ctx context.Context, _ core.Cursor, f func(core.BoxEvent) error) error {
	w := &watcher{wake: make(chan struct{}, 1)}
	r.mu.Lock()
	r.watchers[w] = struct{}{}
	for id := range r.boxes {
		w.changed = append(w.changed, id)
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, w)
	}()

	if err := r.tell(w, f); err != nil {
		return err
	}
	if err := f(core.BoxEvent{Cursor: r.now(), Synced: true}); err != nil {
		return err
	}
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.life.Done():
			return errClosed
		}
		if err := r.tell(w, f); err != nil {
			return err
		}
	}
}

// tell hands the states of changed boxes to f.
func (r *Runtime) tell(w *watcher, f func(core.BoxEvent) error) error {
	r.mu.Lock()
	changed := w.changed
	w.changed = nil
	r.mu.Unlock()
	for _, id := range changed {
		r.mu.Lock()
		b := r.boxes[id]
		r.mu.Unlock()
		event := core.BoxEvent{Cursor: r.now(), Removed: id}
		if b != nil {
			state := r.snapshot(b)
			event.State, event.Removed = &state, ""
		}
		if err := f(event); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) now() core.Cursor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return core.Cursor(strconv.FormatUint(r.cursor, 10))
}
