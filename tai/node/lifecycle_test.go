package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
)

func TestLifecycle(t *testing.T) {
	r := openRuntime(t)
	made := create(t, r, core.BoxSpec{ID: "b1", Labels: map[string]string{"a": "b"}})
	if made.Incarnation == "" || made.Network != "none" || made.Labels["a"] != "b" || made.StartedAt.IsZero() {
		t.Errorf("state of a new box: %+v", made)
	}
	if got, want := sh(t, r, "b1", "echo $$; hostname; cat /etc/hostname; echo kept > /kept"), "b1"; !strings.HasSuffix(got, want+"\n"+want) {
		t.Errorf("in the box: %q", got)
	}

	stopped, err := r.Stop(t.Context(), core.BoxRef{ID: "b1", Incarnation: made.Incarnation}, 5*time.Second)
	if err != nil || stopped.Status != core.StatusStopped || stopped.ExitCode == nil || *stopped.ExitCode != 0 || stopped.Reason != core.ReasonExited {
		t.Fatalf("stop: %+v, %v", stopped, err)
	}
	if _, err := r.Exec(t.Context(), core.BoxRef{ID: "b1"}, core.ExecSpec{Cmd: []string{"true"}}); !errors.Is(err, core.ErrNotRunning) {
		t.Errorf("exec in a stopped box: %v, want ErrNotRunning", err)
	}
	if _, err := r.Stop(t.Context(), core.BoxRef{ID: "b1"}, 0); err != nil {
		t.Errorf("stop again: %v", err)
	}

	again, err := r.Start(t.Context(), core.BoxRef{ID: "b1"})
	if err != nil || again.Status != core.StatusRunning || again.Incarnation == made.Incarnation {
		t.Fatalf("start again: %+v, %v", again, err)
	}
	if got := sh(t, r, "b1", "cat /kept"); got != "kept" {
		t.Errorf("a file of before the stop: %q", got)
	}
	if _, err := r.Stop(t.Context(), core.BoxRef{ID: "b1", Incarnation: made.Incarnation}, 0); !errors.Is(err, core.ErrConflict) {
		t.Errorf("stop of the earlier incarnation: %v, want ErrConflict", err)
	}

	if err := r.Remove(t.Context(), core.BoxRef{ID: "b1"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), core.BoxRef{ID: "b1"}); err != nil {
		t.Errorf("remove again: %v", err)
	}
	if _, err := r.Inspect(t.Context(), "b1"); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("inspect a removed box: %v, want ErrNotFound", err)
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	r := openRuntime(t)
	first := create(t, r, core.BoxSpec{ID: "b1", Env: []string{"A=1"}})
	if again := create(t, r, core.BoxSpec{ID: "b1", Env: []string{"A=1"}, Cmd: []string{}}); again.Incarnation != first.Incarnation {
		t.Errorf("created again: %+v, want %+v", again, first)
	}
	if _, err := r.Create(t.Context(), core.BoxSpec{ID: "b1", Image: "host"}); !errors.Is(err, core.ErrConflict) {
		t.Errorf("another specification: %v, want ErrConflict", err)
	}
	created := create(t, r, core.BoxSpec{ID: "b2", NotStarted: true})
	if created.Status != core.StatusCreated {
		t.Errorf("not started: %+v", created)
	}
}

func TestCreateAllOrNothing(t *testing.T) {
	r := openRuntime(t)
	tests := []struct {
		name string
		spec core.BoxSpec
		want error
	}{
		{"another image", core.BoxSpec{ID: "b", Image: "debian"}, core.ErrUnsupported},
		{"ports", core.BoxSpec{ID: "b", Image: "host", Ports: []core.PortMapping{{ContainerPort: 80}}}, core.ErrUnsupported},
		{"vnc", core.BoxSpec{ID: "b", Image: "host", VNC: true}, core.ErrUnsupported},
		{"bad id", core.BoxSpec{ID: "../b", Image: "host"}, core.ErrInvalid},
		{"long id", core.BoxSpec{ID: core.BoxID(strings.Repeat("b", 300)), Image: "host"}, core.ErrInvalid},
		{"env key", core.BoxSpec{ID: "b", Image: "host", Env: []string{"=x"}}, core.ErrInvalid},
		{"too little memory", core.BoxSpec{ID: "b", Image: "host", Memory: 4096}, core.ErrInvalid},
		{"no such user", core.BoxSpec{ID: "b", Image: "host", User: "no-such-user"}, core.ErrInvalid},
		{"no such volume", core.BoxSpec{ID: "b", Image: "host", Mounts: []core.VolumeMount{{Session: "nope", Target: "/w"}}}, core.ErrNotFound},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := r.Create(t.Context(), test.spec)
			if !errors.Is(err, test.want) {
				t.Errorf("create: %v, want %v", err, test.want)
			}
			if boxes, err := r.List(t.Context()); err != nil || len(boxes) > 0 {
				t.Errorf("boxes afterwards: %v, %v", boxes, err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := r.Create(ctx, core.BoxSpec{ID: "b", Image: "host"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("create without the time for it: %v", err)
	}
	if boxes, err := r.List(t.Context()); err != nil || len(boxes) > 0 {
		t.Errorf("boxes afterwards: %v, %v", boxes, err)
	}
}

func TestMainProcess(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "b1", Cmd: []string{"sh", "-c", "exit 3"}})
	eventually(t, "the box ends", func() bool {
		s, err := r.Inspect(t.Context(), "b1")
		return err == nil && s.Status == core.StatusStopped
	})
	s, err := r.Inspect(t.Context(), "b1")
	if err != nil || s.ExitCode == nil || *s.ExitCode != 3 || s.Reason != core.ReasonExited {
		t.Errorf("a box whose command exits with 3: %+v, %v", s, err)
	}
	// A main process that ignores SIGTERM is killed after the grace period.
	create(t, r, core.BoxSpec{ID: "b2", Cmd: []string{"sleep", "600"}})
	eventually(t, "sleep is process 1", func() bool { return sh(t, r, "b2", "cat /proc/1/comm") == "sleep" })
	s, err = r.Stop(t.Context(), core.BoxRef{ID: "b2"}, 100*time.Millisecond)
	if err != nil || s.ExitCode == nil || *s.ExitCode != 137 || s.Reason != core.ReasonKilled {
		t.Errorf("killed: %+v, %v", s, err)
	}
}

func TestWatch(t *testing.T) {
	r := openRuntime(t)
	create(t, r, core.BoxSpec{ID: "old"})
	events := make(chan core.BoxEvent, 64)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- r.Watch(ctx, "", func(e core.BoxEvent) error {
			events <- e
			return nil
		})
	}()
	next := func(what string, match func(core.BoxEvent) bool) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if match(e) {
					return
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("no event: %s", what)
			}
		}
	}
	first := <-events
	if first.State == nil || first.State.ID != "old" {
		t.Errorf("first event: %+v", first)
	}
	if second := <-events; !second.Synced {
		t.Errorf("second event: %+v, want synced", second)
	}
	create(t, r, core.BoxSpec{ID: "new"})
	next("new box runs", func(e core.BoxEvent) bool {
		return e.State != nil && e.State.ID == "new" && e.State.Status == core.StatusRunning
	})
	sh(t, r, "old", "kill 1")
	next("old box stopped", func(e core.BoxEvent) bool {
		return e.State != nil && e.State.ID == "old" && e.State.Status == core.StatusStopped
	})
	if err := r.Remove(t.Context(), core.BoxRef{ID: "new"}); err != nil {
		t.Fatal(err)
	}
	next("new box removed", func(e core.BoxEvent) bool { return e.Removed == "new" })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("watch ended with %v", err)
	}
}
