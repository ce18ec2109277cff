package steady

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/yaoapp/sbgw/core"
)

// stub is a backend whose List and Exec have this outcome.
type stub struct {
	core.Backend
	err   error
	calls int
}

func (s *stub) List(context.Context) ([]core.BoxState, error) {
	s.calls++
	return []core.BoxState{{}}, s.err
}

func (s *stub) Exec(context.Context, core.BoxRef, core.ExecSpec) (core.Process, error) {
	s.calls++
	return nil, s.err
}

// line gives backends out in turn.
type line struct {
	backends []core.Backend
	lost     []core.Backend
}

func (l *line) Acquire(_ context.Context, after core.Backend) (core.Backend, error) {
	for i, b := range l.backends {
		if after == nil || i > 0 && l.backends[i-1] == after {
			return b, nil
		}
	}
	return nil, core.ErrUnavailable
}

func (l *line) Lost(b core.Backend, _ error) { l.lost = append(l.lost, b) }

func TestCalls(t *testing.T) {
	gone := fmt.Errorf("%w: bang", core.ErrPluginGone)
	list := func(b *Backend) error { _, err := b.List(context.Background()); return err }
	exec := func(b *Backend) error {
		_, err := b.Exec(context.Background(), core.BoxRef{}, core.ExecSpec{})
		return err
	}
	for _, c := range []struct {
		name          string
		call          func(*Backend) error
		outcomes      []error // by backend
		want          error
		first, second int // calls
		lost          int
	}{
		{"success", list, []error{nil, nil}, nil, 1, 0, 0},
		{"an error of the call's own", list, []error{core.ErrNotFound, nil}, core.ErrNotFound, 1, 0, 0},
		{"lost once", list, []error{gone, nil}, nil, 1, 1, 1},
		{"lost twice", list, []error{gone, gone}, core.ErrPluginGone, 1, 1, 2},
		{"lost, no successor", list, []error{gone}, core.ErrUnavailable, 1, 0, 1},
		{"exec is not repeated", exec, []error{gone, nil}, core.ErrPluginGone, 1, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := &line{}
			stubs := []*stub{{}, {}}
			for i, err := range c.outcomes {
				stubs[i].err = err
				source.backends = append(source.backends, stubs[i])
			}
			if err := c.call(New(source, core.ErrPluginGone)); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if stubs[0].calls != c.first || stubs[1].calls != c.second || len(source.lost) != c.lost {
				t.Errorf("calls: got %d, %d, losses %d, want %d, %d, %d",
					stubs[0].calls, stubs[1].calls, len(source.lost), c.first, c.second, c.lost)
			}
		})
	}
}

// TestAbilityMissing: a backend that has no method for an ability says so.
func TestAbilityMissing(t *testing.T) {
	b := New(&line{backends: []core.Backend{&stub{}}}, core.ErrPluginGone)
	if _, err := b.OpenVolume(t.Context(), "v", false); !errors.Is(err, core.ErrUnsupported) {
		t.Errorf("open volume: got %v, want kind %q", err, core.ErrUnsupported)
	}
	if err := b.RemoveVolume(t.Context(), "v"); !errors.Is(err, core.ErrUnsupported) {
		t.Errorf("remove volume: got %v, want kind %q", err, core.ErrUnsupported)
	}
}
