package core_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/workspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func create(t *testing.T, m *core.Manager, o core.CreateOptions) *core.Box {
	t.Helper()
	if o.Image == "" {
		o.Image = "host"
	}
	b, err := m.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestUseOutsideOfStartAndClose(t *testing.T) {
	if _, err := core.New(core.Config{}); !errors.Is(err, core.ErrNotAvailable) {
		t.Errorf("New without backends = %v, want ErrNotAvailable", err)
	}
	m, err := core.New(core.Config{Backends: newFake(), Pool: []core.Pool{{Name: "p"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.List(t.Context(), core.ListOptions{}); !errors.Is(err, core.ErrNotAvailable) {
		t.Errorf("List before Start = %v, want ErrNotAvailable", err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	if _, err := m.Create(t.Context(), core.CreateOptions{Image: "host"}); !errors.Is(err, core.ErrNotAvailable) {
		t.Errorf("Create after Close = %v, want ErrNotAvailable", err)
	}
}

func TestConcurrentCreatesKeepLimits(t *testing.T) {
	f := newFake()
	m := startManager(t, f, &memStore{}, func(c *core.Config) { c.Pool[0].MaxTotal, c.Pool[0].MaxPerUser = 5, 2 })
	var made [2]int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			_, err := m.Create(t.Context(), core.CreateOptions{Image: "host", Owner: fmt.Sprint("u", i%2)})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made[i%2]++
			} else if !errors.Is(err, core.ErrLimitExceeded) {
				t.Errorf("Create = %v, want ErrLimitExceeded", err)
			}
		})
	}
	all.Wait()
	if made != [2]int{2, 2} {
		t.Errorf("boxes made by owner = %v, want 2 each (max_per_user)", made)
	}
	create(t, m, core.CreateOptions{Owner: "u3"})
	if _, err := m.Create(t.Context(), core.CreateOptions{Image: "host", Owner: "u4"}); !errors.Is(err, core.ErrLimitExceeded) {
		t.Errorf("sixth Create = %v, want ErrLimitExceeded (max_total)", err)
	}
}

func TestCreateIsAllOrNothing(t *testing.T) {
	for _, step := range []string{"open-volume", "attach", "create", "settle"} {
		t.Run(step, func(t *testing.T) {
			f := newFake()
			m := startManager(t, f, &memStore{}, func(c *core.Config) { c.Pool[0].MaxTotal = 1 })
			f.plant(step, errors.New("planted"))
			if _, err := m.Create(t.Context(), core.CreateOptions{ID: "b", Image: "host"}); err == nil {
				t.Fatal("Create succeeded")
			}
			if len(f.boxes) != 0 || len(f.volumes) != 0 {
				t.Errorf("left behind: boxes %v, volumes %v", f.boxes, f.volumes)
			}
			f.plant(step, nil)
			create(t, m, core.CreateOptions{ID: "b"}) // neither id nor place is taken
		})
	}
}

func TestGetOrCreate(t *testing.T) {
	f := newFake()
	m := startManager(t, f, &memStore{}, nil)
	ids := make(chan *core.Box, 10)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			b, err := m.GetOrCreate(t.Context(), core.CreateOptions{ID: "one", Image: "host", Owner: "u"})
			if err != nil {
				t.Error(err)
			}
			ids <- b
		})
	}
	all.Wait()
	if got := f.took("create"); len(got) != 1 {
		t.Errorf("backend creates = %v, want one", got)
	}
	if _, err := m.GetOrCreate(t.Context(), core.CreateOptions{ID: "one", Image: "host", Owner: "other"}); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("GetOrCreate by another owner = %v, want ErrNotFound", err)
	}
	if _, err := m.Create(t.Context(), core.CreateOptions{ID: "one", Image: "host"}); !errors.Is(err, core.ErrConflict) {
		t.Errorf("Create of a taken id = %v, want ErrConflict", err)
	}
}

func TestBadOptions(t *testing.T) {
	m := startManager(t, newFake(), &memStore{}, nil)
	cases := map[string]core.CreateOptions{
		"id with slash":  {ID: "a/b", Image: "host"},
		"id of 300":      {ID: strings.Repeat("a", 300), Image: "host"},
		"no image":       {},
		"env name =":     {Image: "host", Env: map[string]string{"A=B": ""}},
		"env value NUL":  {Image: "host", Env: map[string]string{"A": "\x00"}},
		"managed label":  {Image: "host", Labels: map[string]string{core.LabelOwner: "x"}},
		"policy":         {Image: "host", Policy: "forever"},
		"mount mode":     {Image: "host", MountMode: "x"},
		"relative dir":   {Image: "host", WorkDir: "a"},
		"climbing mount": {Image: "host", MountPath: "/a/../b"},
		"memory":         {Image: "host", Memory: -1},
	}
	for name, o := range cases {
		if _, err := m.Create(t.Context(), o); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := m.Create(t.Context(), core.CreateOptions{Image: "host", Pool: "nope"}); !errors.Is(err, core.ErrPoolNotFound) {
		t.Errorf("unknown pool: %v, want ErrPoolNotFound", err)
	}
	b := create(t, m, core.CreateOptions{Policy: "long-running"})
	if i, _ := b.Info(t.Context()); i.Policy != core.LongRunning {
		t.Errorf("policy = %q, want the present spelling", i.Policy)
	}
	for _, cmd := range [][]string{nil, {""}} {
		if _, err := b.Exec(t.Context(), cmd); !errors.Is(err, core.ErrInvalid) {
			t.Errorf("Exec(%q) = %v, want ErrInvalid", cmd, err)
		}
	}
}

func TestRecovery(t *testing.T) {
	f, store := newFake(), &memStore{}
	first := startManager(t, f, store, nil)
	w, err := first.CreateWorkspace(t.Context(), workspace.Options{ID: "ws", Owner: "u"})
	if err != nil {
		t.Fatal(err)
	}
	o := core.CreateOptions{
		ID: "b", Owner: "u", WorkspaceID: string(w.ID), Policy: core.OneShot,
		IdleTimeout: time.Minute, Labels: map[string]string{"k": "v"},
	}
	want, err := create(t, first, o).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	fakeBackend{f}.Create(t.Context(), core.BoxSpec{ID: "foreign", Labels: map[string]string{core.LabelGateway: "gw2"}})

	for name, s := range map[string]*memStore{"kept state": store, "lost state": {}} {
		t.Run(name, func(t *testing.T) {
			m := startManager(t, f, s, nil)
			list, err := m.List(t.Context(), core.ListOptions{})
			if err != nil || len(list) != 1 {
				t.Fatalf("List = %d boxes, %v; want the one of ours", len(list), err)
			}
			got, err := list[0].Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got.LastActive = want.LastActive
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the box found differs (-before +after):\n%s", diff)
			}
			if path, ok := m.Path("ws"); !ok || path != "/mnt/ws" {
				t.Errorf("Path = %q, %v; want the workspace mounted again", path, ok)
			}
		})
	}
}

func TestBoxGoneWhileAway(t *testing.T) {
	f, store := newFake(), &memStore{}
	first := startManager(t, f, store, nil)
	create(t, first, core.CreateOptions{ID: "b"})
	first.Close()
	delete(f.boxes, "b")
	m := startManager(t, f, store, nil)
	if _, err := m.Get(t.Context(), "b"); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("Get = %v, want ErrNotFound", err)
	}
	if !f.volumes["b"] {
		t.Error("files of a box that nobody removed were deleted")
	}
}

func TestRemove(t *testing.T) {
	f := newFake()
	m := startManager(t, f, &memStore{}, nil)
	b := create(t, m, core.CreateOptions{ID: "b"})
	f.plant("remove", core.ErrUnavailable)
	if err := m.Remove(t.Context(), "b"); !errors.Is(err, core.ErrUnavailable) {
		t.Fatalf("Remove = %v, want ErrUnavailable", err)
	}
	if _, err := m.Get(t.Context(), "b"); err != nil {
		t.Errorf("a box that could not be removed is not listed: %v", err)
	}
	f.plant("remove", nil)
	if err := m.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if len(f.volumes) != 0 {
		t.Errorf("volumes left: %v", f.volumes)
	}
	if _, err := b.Exec(t.Context(), []string{"true"}); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("Exec on a removed box = %v, want ErrNotFound", err)
	}
}

func TestWorkspaceInUse(t *testing.T) {
	m := startManager(t, newFake(), &memStore{}, nil)
	w, err := m.CreateWorkspace(t.Context(), workspace.Options{Owner: "u"})
	if err != nil {
		t.Fatal(err)
	}
	b := create(t, m, core.CreateOptions{WorkspaceID: string(w.ID), Owner: "u"})
	if err := m.DeleteWorkspace(t.Context(), w.ID); !errors.Is(err, core.ErrConflict) || !strings.Contains(err.Error(), b.ID()) {
		t.Errorf("DeleteWorkspace = %v, want ErrConflict naming %s", err, b.ID())
	}
	if _, err := m.Create(t.Context(), core.CreateOptions{Image: "host", WorkspaceID: string(w.ID), Owner: "x"}); !errors.Is(err, core.ErrNotFound) {
		t.Errorf("another owner's Create = %v, want ErrNotFound", err)
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.DeleteWorkspace(t.Context(), w.ID); err != nil {
		t.Error(err)
	}
}

func TestExecIsBetweenTheBarrierHalves(t *testing.T) {
	f := newFake()
	f.run = func([]string, io.Reader, io.Writer, io.Writer, <-chan struct{}) core.ExecExit {
		f.note("ran", "")
		return core.ExecExit{Reason: core.ReasonExited, Event: core.Event{Boot: "b", Number: 7}}
	}
	m := startManager(t, f, &memStore{}, nil)
	b := create(t, m, core.CreateOptions{ID: "b"})
	order := []string{"settle", "recall", "exec", "ran", "barrier", "refresh", "start", "stop"}

	f.took()
	if _, err := b.Exec(t.Context(), []string{"c"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"settle b", "recall b", "exec [c]", "ran ", "refresh b 7"}, f.took(order...)); diff != "" {
		t.Errorf("Exec (-want +got):\n%s", diff)
	}
	if _, err := b.Exec(t.Context(), []string{"c"}, core.WithNoBarrier()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"exec [c]", "ran "}, f.took(order...)); diff != "" {
		t.Errorf("Exec without barrier (-want +got):\n%s", diff)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"stop b", "barrier b", "refresh b 99", "settle b", "recall b", "start b"}, f.took(order...)); diff != "" {
		t.Errorf("Stop and Start (-want +got):\n%s", diff)
	}

	f.plant("settle", errors.New("planted"))
	if _, err := b.Exec(t.Context(), []string{"c"}); !errors.Is(err, core.ErrBarrier) {
		t.Errorf("Exec with a failing first half = %v, want ErrBarrier", err)
	}
	if got := f.took("exec"); got != nil {
		t.Errorf("the command was started all the same: %v", got)
	}
	f.plant("settle", nil)
	f.plant("refresh", errors.New("planted"))
	res, err := b.Exec(t.Context(), []string{"c"})
	if !errors.Is(err, core.ErrBarrier) || res == nil {
		t.Errorf("Exec with a failing second half = %v, %v; want the result and ErrBarrier", res, err)
	}
	s, err := b.Stream(t.Context(), []string{"c"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(); !errors.Is(err, core.ErrBarrier) {
		t.Errorf("Wait with a failing second half = %v, want ErrBarrier", err)
	}
}

func TestExecFeedsCollectsAndKills(t *testing.T) {
	f := newFake()
	f.run = func(cmd []string, in io.Reader, out, errs io.Writer, kill <-chan struct{}) core.ExecExit {
		if cmd[0] == "sleep" {
			fmt.Fprint(out, "part")
			<-kill
			return core.ExecExit{Code: 137, Reason: core.ReasonKilled}
		}
		io.Copy(out, in)
		fmt.Fprint(errs, "e")
		return core.ExecExit{Code: 3, Reason: core.ReasonExited}
	}
	m := startManager(t, f, &memStore{}, nil)
	b := create(t, m, core.CreateOptions{})
	big := strings.Repeat("x", 1<<20)
	res, err := b.Exec(t.Context(), []string{"cat"}, core.WithStdin([]byte(big)))
	if err != nil || res.ExitCode != 3 || res.Stdout != big || res.Stderr != "e" {
		t.Errorf("Exec = %d bytes, %v", len(res.Stdout), err)
	}
	res, err = b.Exec(t.Context(), []string{"sleep"}, core.WithTimeout(20*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) || res == nil || res.Stdout != "part" || res.ExitCode != 137 {
		t.Errorf("Exec past its timeout = %+v, %v; want what it wrote and DeadlineExceeded", res, err)
	}
	s, err := b.Stream(t.Context(), []string{"sleep"})
	if err != nil {
		t.Fatal(err)
	}
	s.Cancel()
	if code, err := s.Wait(); code != 137 || err != nil {
		t.Errorf("cancelled Stream = %d, %v; want 137", code, err)
	}
	if out, err := io.ReadAll(s.Stdout); string(out) != "part" || err != nil {
		t.Errorf("Stdout read after Wait = %q, %v", out, err)
	}
}

func TestOneShotGoesWithItsCommand(t *testing.T) {
	f := newFake()
	m := startManager(t, f, &memStore{}, nil)
	b := create(t, m, core.CreateOptions{ID: "a", Policy: core.OneShot})
	if _, err := b.Exec(t.Context(), []string{"true"}); err != nil {
		t.Fatal(err)
	}
	b = create(t, m, core.CreateOptions{ID: "b", Policy: core.OneShot})
	s, err := b.Stream(t.Context(), []string{"true"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(f.boxes) != 0 || len(f.volumes) != 0 {
		t.Errorf("left: boxes %v, volumes %v", f.boxes, f.volumes)
	}
}
