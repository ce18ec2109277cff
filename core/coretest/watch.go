package coretest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
)

func (s *suite) watch() []testCase {
	return []testCase{
		{"changes", s.tellsChanges},
		{"callback_fails", s.endsByCallback},
	}
}

// watching runs a Watch until the test ends and returns its events.
func (s *suite) watching(t *testing.T) <-chan core.BoxEvent {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events := make(chan core.BoxEvent, 64)
	done := make(chan error, 1)
	go func() {
		done <- s.b.Watch(ctx, "", func(e core.BoxEvent) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			is(t, err, context.Canceled, "watch, ended by its caller")
		case <-time.After(patience):
			t.Error("watch did not end with its context")
		}
	})
	return events
}

// expect reads events until one is right.
func expect(t *testing.T, events <-chan core.BoxEvent, what string, right func(core.BoxEvent) bool) {
	t.Helper()
	end := time.After(patience)
	for {
		select {
		case e := <-events:
			if right(e) {
				return
			}
		case <-end:
			t.Fatalf("no event: %s", what)
		}
	}
}

func state(id core.BoxID, st core.Status) func(core.BoxEvent) bool {
	return func(e core.BoxEvent) bool { return e.State != nil && e.State.ID == id && e.State.Status == st }
}

func (s *suite) tellsChanges(t *testing.T) {
	before := s.box(t)
	after := s.newID(t)
	events := s.watching(t)
	found := false
	expect(t, events, "synced", func(e core.BoxEvent) bool {
		found = found || state(before.ID, core.StatusRunning)(e)
		return e.Synced
	})
	if !found {
		t.Error("the box that was there is not told before synced")
	}
	if _, err := s.b.Create(deadline(t), core.BoxSpec{ID: after, Image: s.h.Image}); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "a box that runs", state(after, core.StatusRunning))
	if _, err := s.b.Stop(deadline(t), core.BoxRef{ID: after}, time.Second); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "a box that stopped", state(after, core.StatusStopped))
	if err := s.b.Remove(deadline(t), core.BoxRef{ID: after}); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "a box that is gone", func(e core.BoxEvent) bool { return e.Removed == after })
}

func (s *suite) endsByCallback(t *testing.T) {
	mine := errors.New("enough")
	var err error
	within(t, "the end of the watch", func() {
		err = s.b.Watch(deadline(t), "", func(core.BoxEvent) error { return mine })
	})
	is(t, err, mine, "watch whose callback failed")
}
