package core_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/workspace"
)

// fakePool is a backend in memory whose commands are Go functions. It is its own
// BackendSource, Mounter, VolumeGate and Opener, and writes down what is asked
// of it, in order.
type fakePool struct {
	run func(args []string, in io.Reader, out, errs io.Writer, kill <-chan struct{}) core.ExecExit

	mu       sync.Mutex
	boxes    map[core.BoxID]core.BoxState
	volumes  map[core.VolumeSession]bool
	watchers map[int]chan core.BoxEvent
	next     int
	calls    []string
	fail     map[string]error // by call
	starts   int
}

func newFake() *fakePool {
	return &fakePool{
		boxes: make(map[core.BoxID]core.BoxState), volumes: make(map[core.VolumeSession]bool),
		watchers: make(map[int]chan core.BoxEvent), fail: make(map[string]error),
		run: func([]string, io.Reader, io.Writer, io.Writer, <-chan struct{}) core.ExecExit {
			return core.ExecExit{Reason: core.ReasonExited}
		},
	}
}

// note writes a call down and returns the error planted for it.
func (f *fakePool) note(call string, what any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprint(call, " ", what))
	return f.fail[call]
}

func (f *fakePool) plant(call string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[call] = err
}

// took returns the calls so far and forgets them.
func (f *fakePool) took(only ...string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var calls []string
	for _, c := range f.calls {
		for _, o := range only {
			if strings.HasPrefix(c, o+" ") {
				calls = append(calls, c)
			}
		}
	}
	f.calls = nil
	return calls
}

func (f *fakePool) tell(e core.BoxEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.watchers {
		c <- e
	}
}

// BackendSource.

func (f *fakePool) Open(context.Context, core.Pool) (core.Backend, error) { return fakeBackend{f}, nil }
func (f *fakePool) Close(context.Context, core.PoolName) error            { return nil }
func (f *fakePool) Ready(core.PoolName) error                             { return nil }

// fakeBackend is the core.Backend of a fakePool.
type fakeBackend struct{ *fakePool }

func (f fakeBackend) Describe(context.Context) (core.BackendInfo, error) {
	return core.BackendInfo{Abilities: []core.Ability{core.AbilityExec, core.AbilityVolume, core.AbilityVolumeRemoval}}, nil
}

func (f fakeBackend) Create(_ context.Context, s core.BoxSpec) (core.BoxState, error) {
	if err := f.note("create", s.ID); err != nil {
		return core.BoxState{}, err
	}
	st := core.BoxState{ID: s.ID, Status: core.StatusRunning, Incarnation: "1", Labels: s.Labels, Image: s.Image}
	f.mu.Lock()
	f.boxes[s.ID] = st
	f.mu.Unlock()
	f.tell(core.BoxEvent{State: &st})
	return st, nil
}

func (f fakeBackend) set(id core.BoxID, status core.Status) (core.BoxState, error) {
	f.mu.Lock()
	st, ok := f.boxes[id]
	if !ok {
		f.mu.Unlock()
		return st, core.ErrNotFound
	}
	st.Status = status
	if status == core.StatusRunning {
		f.starts++
		st.Incarnation = core.Incarnation(fmt.Sprint("start", f.starts))
	}
	f.boxes[id] = st
	f.mu.Unlock()
	f.tell(core.BoxEvent{State: &st})
	return st, nil
}

func (f fakeBackend) Start(_ context.Context, b core.BoxRef) (core.BoxState, error) {
	f.note("start", b.ID)
	return f.set(b.ID, core.StatusRunning)
}

func (f fakeBackend) Stop(_ context.Context, b core.BoxRef, _ time.Duration) (core.BoxState, error) {
	f.note("stop", b.ID)
	return f.set(b.ID, core.StatusStopped)
}

func (f fakeBackend) Remove(_ context.Context, b core.BoxRef) error {
	if err := f.note("remove", b.ID); err != nil {
		return err
	}
	f.mu.Lock()
	delete(f.boxes, b.ID)
	f.mu.Unlock()
	f.tell(core.BoxEvent{Removed: b.ID})
	return nil
}

func (f fakeBackend) Inspect(_ context.Context, id core.BoxID) (core.BoxState, error) {
	if err := f.note("inspect", id); err != nil {
		return core.BoxState{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	st, ok := f.boxes[id]
	if !ok {
		return st, core.ErrNotFound
	}
	return st, nil
}

func (f fakeBackend) List(context.Context) ([]core.BoxState, error) {
	return nil, core.Unsupported("list")
}

func (f fakeBackend) Watch(ctx context.Context, _ core.Cursor, tell func(core.BoxEvent) error) error {
	events := make(chan core.BoxEvent, 1000)
	f.mu.Lock()
	n := f.next
	f.next++
	f.watchers[n] = events
	for _, st := range f.boxes {
		events <- core.BoxEvent{State: &st}
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, n)
	}()
	events <- core.BoxEvent{Synced: true}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-events:
			if err := tell(e); err != nil {
				return err
			}
		}
	}
}

func (f fakeBackend) OpenVolume(_ context.Context, s core.VolumeSession, create bool) (core.Endpoint, error) {
	if err := f.note("open-volume", s); err != nil {
		return core.Endpoint{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if create {
		f.volumes[s] = true
	}
	if !f.volumes[s] {
		return core.Endpoint{}, core.ErrNotFound
	}
	return core.Endpoint{Kind: core.EndpointUnix, Address: "/fake", Session: s}, nil
}

func (f fakeBackend) RemoveVolume(_ context.Context, s core.VolumeSession) error {
	f.note("remove-volume", s)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.volumes, s)
	return nil
}

func (f fakeBackend) Exec(_ context.Context, b core.BoxRef, s core.ExecSpec) (core.Process, error) {
	if err := f.note("exec", s.Cmd); err != nil {
		return nil, err
	}
	p := &fakeProcess{kill: make(chan struct{}), done: make(chan struct{})}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	p.in, p.out, p.errs = inW, outR, errR
	go func() {
		p.exit = f.run(s.Cmd, inR, outW, errW, p.kill)
		inR.Close()
		close(p.done)
		outW.Close()
		errW.Close()
	}()
	return p, nil
}

// fakeProcess runs a Go function.
type fakeProcess struct {
	in        *io.PipeWriter
	out, errs *io.PipeReader
	once      sync.Once
	kill      chan struct{}
	done      chan struct{}
	exit      core.ExecExit
}

func (p *fakeProcess) Stdin() io.WriteCloser        { return p.in }
func (p *fakeProcess) Stdout() io.Reader            { return p.out }
func (p *fakeProcess) Stderr() io.Reader            { return p.errs }
func (p *fakeProcess) Resize(core.WindowSize) error { return nil }
func (p *fakeProcess) Signal(int, bool) error       { p.once.Do(func() { close(p.kill) }); return nil }
func (p *fakeProcess) Wait() (core.ExecExit, error) { <-p.done; return p.exit, nil }
func (p *fakeProcess) Close() error {
	p.Signal(9, true)
	p.out.Close()
	p.errs.Close()
	return nil
}

// Mounter and VolumeGate.

type fakeMounts struct{ *fakePool }

func (f fakeMounts) Attach(_ context.Context, w core.WorkspaceID, _ core.Endpoint, _ core.MountOptions) (string, error) {
	return "/mnt/" + string(w), f.note("attach", w)
}
func (f fakeMounts) Detach(_ context.Context, w core.WorkspaceID) error { return f.note("detach", w) }
func (f fakeMounts) Settle(_ context.Context, w core.WorkspaceID) error { return f.note("settle", w) }
func (f fakeMounts) Refresh(_ context.Context, w core.WorkspaceID, e core.Event) error {
	return f.note("refresh", fmt.Sprint(w, " ", e.Number))
}
func (f fakeMounts) Mounts(context.Context) ([]core.MountState, error) { return nil, nil }
func (f fakeMounts) Recall(_ context.Context, w core.WorkspaceID, _ core.Endpoint) error {
	return f.note("recall", w)
}
func (f fakeMounts) Barrier(_ context.Context, w core.WorkspaceID, _ core.Endpoint) (core.Event, error) {
	return core.Event{Boot: "b", Number: 99}, f.note("barrier", w)
}

type fakeOpener struct{ *fakePool }

func (f fakeOpener) Create(ctx context.Context, w workspace.Workspace) error {
	_, err := fakeBackend(f).OpenVolume(ctx, core.VolumeSession(w.ID), true)
	return err
}
func (f fakeOpener) Open(context.Context, workspace.Workspace) (workspace.FS, error) {
	return nil, core.Unsupported("files")
}
func (f fakeOpener) Delete(ctx context.Context, w workspace.Workspace) error {
	return fakeBackend(f).RemoveVolume(ctx, core.VolumeSession(w.ID))
}

// memStore is a Store that a second manager can be started on.
type memStore struct {
	mu sync.Mutex
	m  map[string]map[string][]byte
}

func (s *memStore) Put(b, k string, v []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = make(map[string]map[string][]byte)
	}
	if s.m[b] == nil {
		s.m[b] = make(map[string][]byte)
	}
	s.m[b][k] = v
	return nil
}
func (s *memStore) Get(b, k string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[b][k], nil
}
func (s *memStore) Delete(b, k string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m[b], k)
	return nil
}
func (s *memStore) All(b string) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string][]byte)
	maps.Copy(all, s.m[b])
	return all, nil
}

// startManager starts a manager on a fake; the test closes it.
func startManager(t *testing.T, f *fakePool, store core.Store, change func(*core.Config)) *core.Manager {
	t.Helper()
	c := core.Config{
		Pool:     []core.Pool{{Name: "local", Addr: "local"}},
		Backends: f, Mounts: fakeMounts{f}, Volumes: fakeMounts{f}, State: store, Gateway: "gw1",
	}
	if change != nil {
		change(&c)
	}
	m, err := core.New(c)
	if err != nil {
		t.Fatal(err)
	}
	m.SetWorkspaceManager(workspace.NewManager(workspace.Config{
		Store: store, Opener: fakeOpener{f}, Pools: func() []core.PoolName { return []core.PoolName{"local"} },
	}))
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}
