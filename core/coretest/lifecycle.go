package coretest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/core"
)

func (s *suite) lifecycle() []testCase {
	return []testCase{
		{"describe", s.describes},
		{"create", s.creates},
		{"create_twice", s.createsTwice},
		{"create_otherwise", s.createsOtherwise},
		{"create_bad_image", s.createsBadImage},
		{"create_unsupported", s.createsUnsupported},
		{"not_started", s.createsNotStarted},
		{"stop_and_start", s.stopsAndStarts},
		{"stop_grace", s.stopsGracefully},
		{"stop_stubborn", s.stopsStubborn},
		{"files_stay", s.keepsFiles},
		{"main_exit", s.mainExits},
		{"remove", s.removes},
		{"wrong_incarnation", s.refusesIncarnation},
		{"labels", s.keepsLabels},
	}
}

func (s *suite) describes(t *testing.T) {
	info, err := s.b.Describe(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Runtime == "" || info.OS == "" || info.Arch == "" {
		t.Errorf("describe: got %+v, want runtime, OS and architecture told", info)
	}
	for _, a := range info.Abilities {
		var ok bool
		switch a {
		case core.AbilityExec:
			_, ok = s.b.(core.Execer)
		case core.AbilityVolume:
			_, ok = s.b.(core.VolumeOpener)
		case core.AbilityVolumeRemoval:
			_, ok = s.b.(core.VolumeRemover)
		default:
			t.Errorf("ability %q is unknown to the suite", a)
			continue
		}
		if !ok {
			t.Errorf("ability %q is declared but not implemented", a)
		}
	}
}

func (s *suite) creates(t *testing.T) {
	st := s.box(t)
	if st.Status != core.StatusRunning || st.Incarnation == "" || st.ContainerID == "" {
		t.Errorf("create: got %+v, want a running box with incarnation and container id", st)
	}
	if st.Image != s.h.Image || st.CreatedAt.IsZero() || st.StartedAt.IsZero() {
		t.Errorf("create: got image %q, created %v, started %v", st.Image, st.CreatedAt, st.StartedAt)
	}
	if diff := cmp.Diff(st.Incarnation, s.inspect(t, st.ID).Incarnation); diff != "" {
		t.Errorf("inspect has another incarnation than create (-create +inspect):\n%s", diff)
	}
	if _, ok := listed(t, s.b, st.ID); !ok {
		t.Errorf("list does not have box %s", st.ID)
	}
}

func (s *suite) createsTwice(t *testing.T) {
	spec := s.spec(t, func(b *core.BoxSpec) { b.Env = []string{"A=1"} })
	first, err := s.b.Create(deadline(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.b.Create(deadline(t), spec)
	if err != nil {
		t.Fatalf("create with the same specification: %v", err)
	}
	if first.Incarnation != second.Incarnation {
		t.Errorf("incarnations: got %q, then %q, want the same", first.Incarnation, second.Incarnation)
	}
}

func (s *suite) createsOtherwise(t *testing.T) {
	spec := s.spec(t)
	if _, err := s.b.Create(deadline(t), spec); err != nil {
		t.Fatal(err)
	}
	spec.Env = []string{"OTHER=1"}
	_, err := s.b.Create(deadline(t), spec)
	is(t, err, core.ErrConflict, "create with another specification")
}

func (s *suite) createsBadImage(t *testing.T) {
	spec := s.spec(t, func(b *core.BoxSpec) { b.Image = "no-such-image.invalid/none:1" })
	if _, err := s.b.Create(deadline(t), spec); err == nil {
		t.Fatal("create with an image that is not there: got no error")
	}
	if _, ok := listed(t, s.b, spec.ID); ok {
		t.Error("a box that could not be created is listed")
	}
	_, err := s.b.Inspect(deadline(t), spec.ID)
	is(t, err, core.ErrNotFound, "inspect of it")
	spec.Image = s.h.Image
	if _, err := s.b.Create(deadline(t), spec); err != nil {
		t.Errorf("create with the right image after that: %v", err)
	}
}

// createsUnsupported: what a backend lacks it refuses; it never ignores it.
func (s *suite) createsUnsupported(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*core.BoxSpec)
		have func(core.BoxState) bool
	}{
		{"ports", func(b *core.BoxSpec) { b.Ports = []core.PortMapping{{ContainerPort: 80}} },
			func(st core.BoxState) bool { return len(st.Ports) == 1 && st.Ports[0].HostPort != 0 }},
		{"vnc", func(b *core.BoxSpec) { b.VNC = true }, func(core.BoxState) bool { return true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := s.spec(t, c.edit)
			st, err := s.b.Create(deadline(t), spec)
			switch {
			case errors.Is(err, core.ErrUnsupported):
				if _, ok := listed(t, s.b, spec.ID); ok {
					t.Error("the refused box is listed")
				}
			case err != nil:
				t.Errorf("create: got %v, want success or %q", err, core.ErrUnsupported)
			case !c.have(st):
				t.Errorf("create: success, but the box does not have it: %+v", st)
			}
		})
	}
}

func (s *suite) createsNotStarted(t *testing.T) {
	st := s.box(t, func(b *core.BoxSpec) { b.NotStarted = true })
	if st.Status != core.StatusCreated {
		t.Errorf("status: got %q, want %q", st.Status, core.StatusCreated)
	}
	_, err := s.execer(t).Exec(deadline(t), core.BoxRef{ID: st.ID}, core.ExecSpec{Cmd: []string{"true"}})
	is(t, err, core.ErrNotRunning, "exec in a box never started")
	st, err = s.b.Start(deadline(t), core.BoxRef{ID: st.ID})
	if err != nil || st.Status != core.StatusRunning {
		t.Fatalf("start: got %q, %v", st.Status, err)
	}
	if got := s.sh(t, st.ID, "echo up").stdout; got != "up\n" {
		t.Errorf("exec after start: got %q", got)
	}
}

func (s *suite) stopsAndStarts(t *testing.T) {
	first := s.box(t)
	ref := core.BoxRef{ID: first.ID}
	for range 2 { // the second time it is stopped already
		st, err := s.b.Stop(deadline(t), ref, time.Second)
		if err != nil || st.Status != core.StatusStopped {
			t.Fatalf("stop: got %q, %v", st.Status, err)
		}
	}
	if st := s.inspect(t, first.ID); st.Status != core.StatusStopped || st.FinishedAt.IsZero() {
		t.Errorf("inspect: got %q finished %v, want it stopped", st.Status, st.FinishedAt)
	}
	_, err := s.execer(t).Exec(deadline(t), ref, core.ExecSpec{Cmd: []string{"true"}})
	is(t, err, core.ErrNotRunning, "exec in a stopped box")

	second, err := s.b.Start(deadline(t), ref)
	if err != nil || second.Status != core.StatusRunning {
		t.Fatalf("start: got %q, %v", second.Status, err)
	}
	if second.Incarnation == first.Incarnation || second.Incarnation == "" {
		t.Errorf("incarnation after start: got %q, was %q, want a new one", second.Incarnation, first.Incarnation)
	}
	third, err := s.b.Start(deadline(t), ref)
	if err != nil || third.Incarnation != second.Incarnation {
		t.Errorf("start of a running box: got incarnation %q, %v, want %q", third.Incarnation, err, second.Incarnation)
	}
	if got := s.sh(t, first.ID, "echo up").stdout; got != "up\n" {
		t.Errorf("exec after start: got %q", got)
	}
}

// ready waits for a main process that writes a file named ready.
func (s *suite) ready(t *testing.T, id core.BoxID) {
	t.Helper()
	eventually(t, "the main process's trap", func() bool { return s.sh(t, id, "test -e ready").exit.Code == 0 })
}

func (s *suite) stopsGracefully(t *testing.T) {
	v, _ := s.volume(t)
	st := s.box(t, with(v), func(b *core.BoxSpec) {
		b.Cmd = []string{"sh", "-c", `trap "exit 7" TERM; touch ready; while :; do sleep 0.05; done`}
	})
	s.ready(t, st.ID)
	st, err := s.b.Stop(deadline(t), core.BoxRef{ID: st.ID}, 20*time.Second)
	if err != nil || st.Status != core.StatusStopped {
		t.Fatalf("stop: got %q, %v", st.Status, err)
	}
	if st.ExitCode == nil || *st.ExitCode != 7 {
		t.Errorf("exit code: got %v, want the main process's own 7", st.ExitCode)
	}
}

func (s *suite) stopsStubborn(t *testing.T) {
	v, _ := s.volume(t)
	st := s.box(t, with(v), func(b *core.BoxSpec) {
		b.Cmd = []string{"sh", "-c", `trap "" TERM; touch ready; while :; do sleep 0.05; done`}
	})
	s.ready(t, st.ID)
	began := time.Now()
	st, err := s.b.Stop(deadline(t), core.BoxRef{ID: st.ID}, 200*time.Millisecond)
	if err != nil || st.Status != core.StatusStopped {
		t.Fatalf("stop: got %q, %v", st.Status, err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("stop with 200 ms of grace took %s", took)
	}
}

func (s *suite) keepsFiles(t *testing.T) {
	st := s.box(t)
	file := "/var/tmp/" + name("ct")
	defer s.sh(t, st.ID, "rm -f "+file)
	if r := s.sh(t, st.ID, "echo kept > "+file); r.exit.Code != 0 {
		t.Fatalf("write %s: %+v", file, r)
	}
	if _, err := s.b.Stop(deadline(t), core.BoxRef{ID: st.ID}, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := s.b.Start(deadline(t), core.BoxRef{ID: st.ID}); err != nil {
		t.Fatal(err)
	}
	if got := s.sh(t, st.ID, "cat "+file).stdout; got != "kept\n" {
		t.Errorf("file after stop and start: got %q", got)
	}
}

func (s *suite) mainExits(t *testing.T) {
	st := s.box(t, func(b *core.BoxSpec) { b.Cmd = []string{"sh", "-c", "exit 3"} })
	eventually(t, "the box's stop", func() bool { return s.inspect(t, st.ID).Status == core.StatusStopped })
	st = s.inspect(t, st.ID)
	if st.ExitCode == nil || *st.ExitCode != 3 || st.Reason != core.ReasonExited {
		t.Errorf("got exit code %v, reason %q, want 3, %q", st.ExitCode, st.Reason, core.ReasonExited)
	}
}

func (s *suite) removes(t *testing.T) {
	st := s.box(t)
	for range 2 { // the second time it is absent
		if err := s.b.Remove(deadline(t), core.BoxRef{ID: st.ID}); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	_, err := s.b.Inspect(deadline(t), st.ID)
	is(t, err, core.ErrNotFound, "inspect after remove")
	_, err = s.b.Start(deadline(t), core.BoxRef{ID: st.ID})
	is(t, err, core.ErrNotFound, "start after remove")
	_, err = s.execer(t).Exec(deadline(t), core.BoxRef{ID: st.ID}, core.ExecSpec{Cmd: []string{"true"}})
	is(t, err, core.ErrNotFound, "exec after remove")
	if _, ok := listed(t, s.b, st.ID); ok {
		t.Error("a removed box is listed")
	}
}

func (s *suite) refusesIncarnation(t *testing.T) {
	st := s.box(t)
	other := core.BoxRef{ID: st.ID, Incarnation: "not-" + st.Incarnation}
	_, err := s.b.Stop(deadline(t), other, time.Second)
	is(t, err, core.ErrConflict, "stop")
	is(t, s.b.Remove(deadline(t), other), core.ErrConflict, "remove")
	_, err = s.execer(t).Exec(deadline(t), other, core.ExecSpec{Cmd: []string{"true"}})
	is(t, err, core.ErrConflict, "exec")
	if got := s.inspect(t, st.ID).Status; got != core.StatusRunning {
		t.Errorf("status after the refusals: got %q, want %q", got, core.StatusRunning)
	}
	same := core.BoxRef{ID: st.ID, Incarnation: st.Incarnation}
	if _, err := s.b.Stop(deadline(t), same, time.Second); err != nil {
		t.Errorf("stop of the right incarnation: %v", err)
	}
}

func (s *suite) keepsLabels(t *testing.T) {
	want := map[string]string{core.LabelGateway: "suite", "a.b/c": "ü \" = ,", "empty": ""}
	st := s.box(t, func(b *core.BoxSpec) { b.Labels = want })
	if diff := cmp.Diff(want, s.inspect(t, st.ID).Labels); diff != "" {
		t.Errorf("labels by inspect (-want +got):\n%s", diff)
	}
	l, _ := listed(t, s.b, st.ID)
	if diff := cmp.Diff(want, l.Labels); diff != "" {
		t.Errorf("labels by list (-want +got):\n%s", diff)
	}
}
