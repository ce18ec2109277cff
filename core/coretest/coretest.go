// Package coretest is the conformance suite of the backend contract (core.Backend
// and its abilities). Every backend runs it, also behind a real plugin process:
//
//	coretest.Run(t, coretest.Harness{Open: open, Files: files, Image: "host"})
//
// Sub-tests are named group/case; each makes its own boxes and volumes and
// removes them, also when it fails. Boxes need sh, coreutils and stty.
package coretest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/workspace"
)

// Harness is a backend under test.
type Harness struct {
	// Open connects to the pool under test: each call gives a new client of the
	// same pool, as after a restart. What it starts it ends by t.Cleanup.
	Open func(t *testing.T) core.Backend
	// Files reaches the files of a volume from outside of boxes.
	Files func(t *testing.T, e core.Endpoint) workspace.FS
	// Image is an image that boxes can be made of.
	Image string
	// Skip names cases that do not apply, with the reason.
	Skip map[string]string
}

// target is where volumes are mounted in the suite's boxes.
const target = "/workspace"

// patience bounds every call and every wait of the suite.
const patience = 60 * time.Second

// suite is what the cases share.
type suite struct {
	h Harness
	b core.Backend
}

// Run runs the whole suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	s := &suite{h: h, b: h.Open(t)}
	groups := []struct {
		name  string
		cases []testCase
	}{
		{"lifecycle", s.lifecycle()},
		{"exec", s.exec()},
		{"stream", s.stream()},
		{"files", s.files()},
		{"recovery", s.recovery()},
		{"watch", s.watch()},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) {
					if why := h.Skip[g.name+"/"+c.name]; why != "" {
						t.Skip(why)
					}
					c.run(t)
				})
			}
		})
	}
}

type testCase struct {
	name string
	run  func(t *testing.T)
}

// deadline returns a context for one call.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

func name(prefix string) string { return prefix + "-" + strings.ToLower(rand.Text()[:12]) }

// newID returns the id of a box that is removed when the test ends.
func (s *suite) newID(t *testing.T) core.BoxID {
	t.Helper()
	id := core.BoxID(name("ct"))
	t.Cleanup(func() {
		if err := s.b.Remove(deadline(t), core.BoxRef{ID: id}); err != nil {
			t.Errorf("remove box %s after the test: %v", id, err)
		}
	})
	return id
}

// box makes a box; edit may change its specification first.
func (s *suite) box(t *testing.T, edit ...func(*core.BoxSpec)) core.BoxState {
	t.Helper()
	spec := s.spec(t, edit...)
	st, err := s.b.Create(deadline(t), spec)
	if err != nil {
		t.Fatalf("create box %s: %v", spec.ID, err)
	}
	return st
}

func (s *suite) spec(t *testing.T, edit ...func(*core.BoxSpec)) core.BoxSpec {
	t.Helper()
	spec := core.BoxSpec{ID: s.newID(t), Image: s.h.Image}
	for _, e := range edit {
		e(&spec)
	}
	return spec
}

// volume makes a volume that is removed when the test ends. Call it before
// making boxes that use it, so that they are removed first.
func (s *suite) volume(t *testing.T) (core.VolumeSession, core.Endpoint) {
	t.Helper()
	v := core.VolumeSession(name("ctv"))
	t.Cleanup(func() {
		if err := s.remover(t).RemoveVolume(deadline(t), v); err != nil {
			t.Errorf("remove volume %s after the test: %v", v, err)
		}
	})
	e, err := s.opener(t).OpenVolume(deadline(t), v, true)
	if err != nil {
		t.Fatalf("open volume %s: %v", v, err)
	}
	return v, e
}

// with mounts a volume where commands start.
func with(v core.VolumeSession) func(*core.BoxSpec) {
	return func(s *core.BoxSpec) {
		s.WorkDir = target
		s.Mounts = append(s.Mounts, core.VolumeMount{Session: v, Target: target})
	}
}

func (s *suite) execer(t *testing.T) core.Execer {
	t.Helper()
	return ability[core.Execer](t, s.b, core.AbilityExec)
}

func (s *suite) opener(t *testing.T) core.VolumeOpener {
	t.Helper()
	return ability[core.VolumeOpener](t, s.b, core.AbilityVolume)
}

func (s *suite) remover(t *testing.T) core.VolumeRemover {
	t.Helper()
	return ability[core.VolumeRemover](t, s.b, core.AbilityVolumeRemoval)
}

func ability[T any](t *testing.T, b core.Backend, a core.Ability) T {
	t.Helper()
	x, err := core.Has[T](deadline(t), b, a)
	if err != nil {
		t.Fatalf("ability %s: %v", a, err)
	}
	return x
}

// start starts a process that is closed when the test ends.
func (s *suite) start(t *testing.T, id core.BoxID, spec core.ExecSpec) core.Process {
	t.Helper()
	p, err := s.execer(t).Exec(deadline(t), core.BoxRef{ID: id}, spec)
	if err != nil {
		t.Fatalf("exec %q: %v", spec.Cmd, err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// result is a finished command.
type result struct {
	stdout, stderr string
	exit           core.ExecExit
}

// run runs a command to its end. With stdin it gets that.
func (s *suite) run(t *testing.T, id core.BoxID, spec core.ExecSpec, stdin string) result {
	t.Helper()
	spec.Stdin = stdin != ""
	return finish(t, s.start(t, id, spec), stdin)
}

// sh runs a shell command to its end.
func (s *suite) sh(t *testing.T, id core.BoxID, script string) result {
	t.Helper()
	return s.run(t, id, core.ExecSpec{Cmd: []string{"sh", "-c", script}}, "")
}

// finish feeds and reads a process until it ended.
func finish(t *testing.T, p core.Process, stdin string) result {
	t.Helper()
	var out, errs bytes.Buffer
	var streams sync.WaitGroup
	streams.Go(func() { io.Copy(&out, p.Stdout()) })
	streams.Go(func() { io.Copy(&errs, p.Stderr()) })
	streams.Go(func() {
		io.WriteString(p.Stdin(), stdin) // one that does not want it all is no error
		p.Stdin().Close()
	})
	exit := wait(t, p)
	within(t, "the end of the output", func() { streams.Wait() })
	return result{out.String(), errs.String(), exit}
}

// wait waits for a process's end.
func wait(t *testing.T, p core.Process) (exit core.ExecExit) {
	t.Helper()
	var err error
	within(t, "the process's end", func() { exit, err = p.Wait() })
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return exit
}

// within fails the test if f does not return in time.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s did not come within %s", what, patience)
	}
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s did not come true within %s", what, patience)
		}
	}
}

// is fails the test unless err is of the kind.
func is(t *testing.T, err, kind error, doing string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got error %v, want one of kind %q", doing, err, kind)
	}
}

func (s *suite) inspect(t *testing.T, id core.BoxID) core.BoxState {
	t.Helper()
	st, err := s.b.Inspect(deadline(t), id)
	if err != nil {
		t.Fatalf("inspect %s: %v", id, err)
	}
	return st
}

// listed finds a box in the list.
func listed(t *testing.T, b core.Backend, id core.BoxID) (core.BoxState, bool) {
	t.Helper()
	all, err := b.List(deadline(t))
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	for _, st := range all {
		if st.ID == id {
			return st, true
		}
	}
	return core.BoxState{}, false
}
