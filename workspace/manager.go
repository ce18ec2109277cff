package workspace

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Store keeps the records; see core.Store.
type Store interface {
	Put(bucket, key string, value []byte) error
	Get(bucket, key string) ([]byte, error)
	Delete(bucket, key string) error
	All(bucket string) (map[string][]byte, error)
}

// Config is what a Manager is made of.
type Config struct {
	Store  Store
	Opener Opener
	// Pools lists the pools there are; the first is the default one.
	Pools func() []PoolName
}

// Manager keeps the records of workspaces: ids, owners, and the pool each is
// bound to for good. Its methods may be called concurrently.
type Manager struct {
	store  Store
	opener Opener
	pools  func() []PoolName

	mu sync.Mutex // serializes changes of records
}

// NewManager returns a Manager on c.
func NewManager(c Config) *Manager {
	return &Manager{store: c.Store, opener: c.Opener, pools: c.Pools}
}

const bucket = "workspaces"

// Options describe a workspace to create.
type Options struct {
	ID     ID // empty: a new one
	Name   string
	Owner  Owner
	Pool   PoolName // empty: the default pool
	Labels map[string]string
}

// Filter selects workspaces; an empty field selects all.
type Filter struct {
	Owner Owner
	Pool  PoolName
}

var validID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

// CheckID returns ErrInvalid for what can't be the id of a workspace or box: it
// is a directory's name and a host name.
func CheckID(id string) error {
	if validID.MatchString(id) {
		return nil
	}
	if len(id) > 63 {
		return invalid("id of %d bytes: at most 63 are possible", len(id))
	}
	return invalid("id %q: use letters, digits, '.', '_' and '-', beginning with a letter or digit", id)
}

// NewID returns a new id with a prefix.
func NewID(prefix string) string { return prefix + "-" + strings.ToLower(rand.Text()[:10]) }

// Create makes a workspace and its empty volume. An id that is taken is
// ErrConflict.
func (m *Manager) Create(ctx context.Context, o Options) (Workspace, error) {
	if o.ID == "" {
		o.ID = ID(NewID("ws"))
	}
	if err := CheckID(string(o.ID)); err != nil {
		return Workspace{}, fmt.Errorf("create workspace: %w", err)
	}
	pool, err := m.pool(o.Pool)
	if err != nil {
		return Workspace{}, fmt.Errorf("create workspace %s: %w", o.ID, err)
	}
	w := Workspace{ID: o.ID, Name: o.Name, Owner: o.Owner, Pool: pool, Labels: o.Labels, CreatedAt: time.Now().UTC()}
	if err := m.reserve(w); err != nil {
		return Workspace{}, err
	}
	if err := m.opener.Create(ctx, w); err != nil {
		m.store.Delete(bucket, string(w.ID))
		return Workspace{}, fmt.Errorf("create workspace %s: %w", w.ID, err)
	}
	return w, nil
}

func (m *Manager) pool(name PoolName) (PoolName, error) {
	pools := m.pools()
	switch {
	case len(pools) == 0:
		return "", fmt.Errorf("%w: there is none", ErrPoolNotFound)
	case name == "":
		return pools[0], nil
	case !slices.Contains(pools, name):
		return "", fmt.Errorf("%w: %q", ErrPoolNotFound, name)
	}
	return name, nil
}

// reserve writes the record of a new workspace.
func (m *Manager) reserve(w Workspace) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, err := m.store.Get(bucket, string(w.ID))
	if err != nil {
		return fmt.Errorf("create workspace %s: %w", w.ID, err)
	}
	if old != nil {
		return fmt.Errorf("create workspace: %w: workspace %s exists", ErrConflict, w.ID)
	}
	return m.put(w)
}

func (m *Manager) put(w Workspace) error {
	data, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("encode workspace %s: %w", w.ID, err)
	}
	return m.store.Put(bucket, string(w.ID), data)
}

// Adopt writes the record of a workspace that was found where its bytes are,
// after the records were lost; a known one stays as it is.
func (m *Manager) Adopt(w Workspace) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, err := m.store.Get(bucket, string(w.ID)); err != nil || old != nil {
		return err
	}
	return m.put(w)
}

// Get returns a workspace's record, or ErrNotFound.
func (m *Manager) Get(ctx context.Context, id ID) (Workspace, error) {
	data, err := m.store.Get(bucket, string(id))
	if err != nil {
		return Workspace{}, fmt.Errorf("get workspace %s: %w", id, err)
	}
	if data == nil {
		return Workspace{}, fmt.Errorf("%w: workspace %s", ErrNotFound, id)
	}
	var w Workspace
	if err := json.Unmarshal(data, &w); err != nil {
		return Workspace{}, fmt.Errorf("decode workspace %s: %w", id, err)
	}
	return w, nil
}

// List returns the workspaces that a filter selects, by id.
func (m *Manager) List(ctx context.Context, f Filter) ([]Workspace, error) {
	all, err := m.store.All(bucket)
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	list := make([]Workspace, 0, len(all))
	for id, data := range all {
		var w Workspace
		if err := json.Unmarshal(data, &w); err != nil {
			return nil, fmt.Errorf("decode workspace %s: %w", id, err)
		}
		if (f.Owner == "" || w.Owner == f.Owner) && (f.Pool == "" || w.Pool == f.Pool) {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b Workspace) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list, nil
}

// Delete deletes a workspace with all its files. One that a box has mounted is
// ErrConflict.
func (m *Manager) Delete(ctx context.Context, id ID) error {
	w, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	if err := m.opener.Delete(ctx, w); err != nil {
		return fmt.Errorf("delete workspace %s: %w", id, err)
	}
	return m.store.Delete(bucket, string(id))
}

// Open returns a workspace's files. The caller closes them.
func (m *Manager) Open(ctx context.Context, w Workspace) (FS, error) {
	f, err := m.opener.Open(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("open workspace %s: %w", w.ID, err)
	}
	return f, nil
}
