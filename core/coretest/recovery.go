package coretest

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/core"
)

func (s *suite) recovery() []testCase {
	return []testCase{
		{"reopen", s.findsBoxesAgain},
		{"concurrent_create", s.createsConcurrently},
	}
}

// findsBoxesAgain: what a gateway knows after a restart is what backends tell.
func (s *suite) findsBoxesAgain(t *testing.T) {
	v, _ := s.volume(t)
	labels := map[string]string{core.LabelOwner: "me", core.LabelPool: "p"}
	running := s.box(t, with(v), func(b *core.BoxSpec) { b.Labels = labels })
	stopped := s.box(t)
	if _, err := s.b.Stop(deadline(t), core.BoxRef{ID: stopped.ID}, time.Second); err != nil {
		t.Fatal(err)
	}
	again := s.h.Open(t)
	got, ok := listed(t, again, running.ID)
	if !ok || got.Status != core.StatusRunning || got.Incarnation != running.Incarnation {
		t.Errorf("running box: got %+v, want %+v", got, running)
	}
	if diff := cmp.Diff(labels, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(running.Mounts, got.Mounts); diff != "" || len(got.Mounts) != 1 {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if got, ok := listed(t, again, stopped.ID); !ok || got.Status != core.StatusStopped {
		t.Errorf("stopped box: got %+v", got)
	}
	p, err := ability[core.Execer](t, again, core.AbilityExec).Exec(deadline(t),
		core.BoxRef{ID: running.ID, Incarnation: running.Incarnation}, core.ExecSpec{Cmd: []string{"echo", "still here"}})
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	defer p.Close()
	if r := finish(t, p, ""); r.stdout != "still here\n" {
		t.Errorf("exec: got %+v", r)
	}
}

// createsConcurrently: an answer that was lost is asked for again, maybe while the
// first call still runs.
func (s *suite) createsConcurrently(t *testing.T) {
	spec := s.spec(t)
	const n = 4
	type answer struct {
		st  core.BoxState
		err error
	}
	answers := make(chan answer, n)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range n {
		go func() {
			st, err := s.b.Create(ctx, spec)
			answers <- answer{st, err}
		}()
	}
	seen := map[core.Incarnation]bool{}
	for range n {
		a := <-answers
		if a.err != nil {
			t.Errorf("create: %v", a.err)
		}
		seen[a.st.Incarnation] = true
	}
	if len(seen) != 1 {
		t.Errorf("incarnations: got %d different ones of one box, want 1", len(seen))
	}
}
