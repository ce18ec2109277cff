package workspace_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yaoapp/sbgw/workspace"
)

// bytes is an Opener and a Store in memory.
type bytes struct {
	mu      sync.Mutex
	volumes map[workspace.ID]bool
	fail    error
	records map[string][]byte
}

func (b *bytes) Create(_ context.Context, w workspace.Workspace) error {
	b.volumes[w.ID] = b.fail == nil
	return b.fail
}
func (b *bytes) Open(context.Context, workspace.Workspace) (workspace.FS, error) { return nil, b.fail }
func (b *bytes) Delete(_ context.Context, w workspace.Workspace) error {
	if b.fail == nil {
		delete(b.volumes, w.ID)
	}
	return b.fail
}

func (b *bytes) Put(_, key string, v []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records[key] = v
	return nil
}

func (b *bytes) Get(_, key string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[key], nil
}

func (b *bytes) All(string) (map[string][]byte, error) { return b.records, nil }

// store is the Store half of bytes: both halves have a Delete.
type store struct{ *bytes }

func (s store) Delete(_, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, key)
	return nil
}

func newManager() (*workspace.Manager, *bytes) {
	b := &bytes{volumes: make(map[workspace.ID]bool), records: make(map[string][]byte)}
	return workspace.NewManager(workspace.Config{
		Store: store{b}, Opener: b,
		Pools: func() []workspace.PoolName { return []workspace.PoolName{"first", "second"} },
	}), b
}

func TestCreateGetListDelete(t *testing.T) {
	m, b := newManager()
	ctx := t.Context()
	w, err := m.Create(ctx, workspace.Options{ID: "a", Name: "A", Owner: "u", Labels: map[string]string{"k": "v"}})
	if err != nil || w.Pool != "first" {
		t.Fatalf("Create = %+v, %v; want it on the first pool", w, err)
	}
	if _, err := m.Create(ctx, workspace.Options{ID: "b", Pool: "second"}); err != nil {
		t.Fatal(err)
	}
	got, err := m.Get(ctx, "a")
	if diff := cmp.Diff(w, got); err != nil || diff != "" {
		t.Errorf("Get: %v (-created +got):\n%s", err, diff)
	}
	if list, err := m.List(ctx, workspace.Filter{Owner: "u"}); err != nil || len(list) != 1 || list[0].ID != "a" {
		t.Errorf("List of an owner = %v, %v", list, err)
	}
	if list, err := m.List(ctx, workspace.Filter{Pool: "second"}); err != nil || len(list) != 1 || list[0].ID != "b" {
		t.Errorf("List of a pool = %v, %v", list, err)
	}
	if err := m.Delete(ctx, "a"); err != nil || b.volumes["a"] {
		t.Errorf("Delete = %v, volume there: %v", err, b.volumes["a"])
	}
	if _, err := m.Get(ctx, "a"); !errors.Is(err, workspace.ErrNotFound) {
		t.Errorf("Get of a deleted one = %v, want ErrNotFound", err)
	}
}

func TestRefusals(t *testing.T) {
	m, b := newManager()
	ctx := t.Context()
	for name, c := range map[string]struct {
		o    workspace.Options
		want error
	}{
		"slash":        {workspace.Options{ID: "a/b"}, workspace.ErrInvalid},
		"dots":         {workspace.Options{ID: ".."}, workspace.ErrInvalid},
		"300 bytes":    {workspace.Options{ID: workspace.ID(strings.Repeat("x", 300))}, workspace.ErrInvalid},
		"NUL":          {workspace.Options{ID: "a\x00"}, workspace.ErrInvalid},
		"unknown pool": {workspace.Options{ID: "a", Pool: "third"}, workspace.ErrPoolNotFound},
	} {
		if _, err := m.Create(ctx, c.o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := m.Create(ctx, workspace.Options{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(ctx, workspace.Options{ID: "a"}); !errors.Is(err, workspace.ErrConflict) {
		t.Errorf("second Create = %v, want ErrConflict", err)
	}
	b.fail = errors.New("planted")
	if _, err := m.Create(ctx, workspace.Options{ID: "c"}); err == nil {
		t.Error("Create succeeded without a volume")
	}
	if err := m.Delete(ctx, "a"); err == nil {
		t.Error("Delete succeeded with its volume there")
	}
	b.fail = nil
	if _, err := m.Get(ctx, "c"); !errors.Is(err, workspace.ErrNotFound) {
		t.Errorf("record of a workspace that was not made: %v", err)
	}
	if _, err := m.Get(ctx, "a"); err != nil {
		t.Errorf("record of a workspace that was not deleted: %v", err)
	}
}

func TestAdoptKeepsWhatIsKnown(t *testing.T) {
	m, _ := newManager()
	ctx := t.Context()
	w, err := m.Create(ctx, workspace.Options{ID: "a", Owner: "u"})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []workspace.Workspace{{ID: "a", Owner: "other"}, {ID: "n", Pool: "second"}} {
		if err := m.Adopt(a); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := m.Get(ctx, "a"); got.Owner != w.Owner {
		t.Errorf("owner of a known workspace became %q", got.Owner)
	}
	if got, err := m.Get(ctx, "n"); err != nil || got.Pool != "second" {
		t.Errorf("adopted = %+v, %v", got, err)
	}
}
