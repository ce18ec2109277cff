package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yaoapp/sbgw/workspace"
)

// Manager creates, finds and removes boxes on the pools of its Config. Its
// methods may be called concurrently.
type Manager struct {
	backends     BackendSource
	mounts       Mounter
	volumes      VolumeGate
	tokens       TokenIssuer
	store        Store
	log          *slog.Logger
	gateway      string
	mountOptions MountOptions

	life   context.Context // ends with Close
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // every goroutine of the manager

	mu         sync.Mutex
	phase      phase
	pools      []*pool // in the configuration's order
	boxes      map[BoxID]*record
	workspaces *workspace.Manager
	mounted    map[WorkspaceID]mountPoint
}

type phase int

const (
	phaseNew phase = iota
	phaseStarted
	phaseClosed
)

// pool is a pool of the configuration.
type pool struct {
	conf    Pool
	synced  chan struct{} // closed when its boxes are known
	refused chan struct{} // closed when its plugin said what only a change mends

	mu      sync.Mutex
	backend Backend // nil until opened
	known   bool
	err     error // why the last attempt to watch it ended
}

func (p *pool) name() PoolName { return PoolName(p.conf.Name) }

// get returns the backend, or why there is none.
func (p *pool) get() (Backend, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.backend != nil {
		return p.backend, nil
	}
	if p.err != nil {
		// Whatever its kind: to a caller the pool is what is wrong, not the request.
		return nil, fmt.Errorf("pool %s: %w: %v", p.conf.Name, ErrUnavailable, p.err)
	}
	return nil, fmt.Errorf("pool %s: %w: not opened yet", p.conf.Name, ErrUnavailable)
}

// New returns a Manager on c; Start makes it usable. A Config without Backends
// is ErrNotAvailable, wrong pools are ErrInvalid.
func New(c Config) (*Manager, error) {
	if c.Backends == nil {
		return nil, ErrNotAvailable
	}
	m := &Manager{
		backends: c.Backends, mounts: c.Mounts, volumes: c.Volumes, tokens: c.Tokens, store: c.State,
		log: c.Log, gateway: c.Gateway, mountOptions: c.MountOptions,
		boxes: make(map[BoxID]*record), mounted: make(map[WorkspaceID]mountPoint),
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.store == nil {
		m.store = newMemoryStore()
	}
	seen := make(map[string]bool)
	for _, p := range c.Pool {
		if err := workspace.CheckID(p.Name); err != nil {
			return nil, fmt.Errorf("pool name: %w", err)
		}
		if seen[p.Name] {
			return nil, Invalid("two pools are named %s", p.Name)
		}
		seen[p.Name] = true
		if p.StopTimeout == 0 {
			p.StopTimeout = DefaultStopTimeout
		}
		m.pools = append(m.pools, &pool{conf: p, synced: make(chan struct{}), refused: make(chan struct{})})
	}
	return m, nil
}

// startWait is how long Start waits for pools to tell their boxes. One that
// does not is watched on, and its boxes are of unknown status until then.
const startWait = 15 * time.Second

// Start opens the pools, finds the boxes that are there, and shows their
// workspaces as directories. It returns when every pool has told its boxes, or
// after 15 s without those that did not.
func (m *Manager) Start(ctx context.Context) error {
	m.mu.Lock()
	if m.phase != phaseNew {
		m.mu.Unlock()
		return fmt.Errorf("start manager: %w: started or closed before", ErrNotAvailable)
	}
	m.phase = phaseStarted
	m.life, m.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	pools := m.pools
	m.mu.Unlock()
	if err := m.loadRecords(); err != nil {
		return err
	}
	for _, p := range pools {
		m.work.Go(func() { m.follow(p) })
	}
	wait, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for _, p := range pools {
		select {
		case <-p.synced:
			m.mountAll(ctx, p.name())
		case <-p.refused:
			m.mountLater(p)
		case <-wait.Done():
			p.mu.Lock()
			err := p.err
			p.mu.Unlock()
			m.log.Warn("pool does not answer yet", "pool", p.conf.Name, "err", err)
			m.mountLater(p)
		}
	}
	return nil
}

// mountLater shows the workspaces of a pool when it answers.
func (m *Manager) mountLater(p *pool) {
	m.work.Go(func() {
		select {
		case <-p.synced:
			m.mountAll(m.life, p.name())
		case <-m.life.Done():
		}
	})
}

// Close lets go of everything; boxes, mounts and nodes stay. Calls that wait end
// with ErrNotAvailable. Closing again is success.
func (m *Manager) Close() error {
	m.mu.Lock()
	started := m.phase == phaseStarted
	m.phase = phaseClosed
	m.mu.Unlock()
	if !started {
		return nil
	}
	m.cancel(ErrNotAvailable)
	m.work.Wait()
	var errs []error
	for _, p := range m.pools {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := m.backends.Close(ctx, p.name()); err != nil {
			errs = append(errs, fmt.Errorf("close pool %s: %w", p.conf.Name, err))
		}
		cancel()
	}
	return errors.Join(errs...)
}

// SetWorkspaceManager links the records of workspaces, so that boxes can be
// created with one.
func (m *Manager) SetWorkspaceManager(wm *workspace.Manager) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workspaces = wm
}

// begin returns ErrNotAvailable where the manager is not in use.
func (m *Manager) begin() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != phaseStarted || len(m.pools) == 0 {
		return ErrNotAvailable
	}
	return nil
}

// pool returns a pool by name; empty is the first.
func (m *Manager) pool(name string) (*pool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pools {
		if name == "" || p.conf.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrPoolNotFound, name)
}

// Get returns the box of an id, or ErrNotFound.
func (m *Manager) Get(ctx context.Context, id string) (*Box, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.boxes[BoxID(id)]
	if r == nil || r.creating {
		return nil, fmt.Errorf("%w: box %s", ErrNotFound, id)
	}
	return &Box{m: m, r: r}, nil
}

// GetOrCreate returns the box of opts.ID, or creates it. A box of another owner
// is ErrNotFound; an empty id always creates.
func (m *Manager) GetOrCreate(ctx context.Context, opts CreateOptions) (*Box, error) {
	for {
		if opts.ID != "" {
			b, err := m.Get(ctx, opts.ID)
			if err == nil {
				if opts.Owner != "" && b.Owner() != opts.Owner {
					return nil, fmt.Errorf("%w: box %s", ErrNotFound, opts.ID)
				}
				return b, nil
			}
			if !errors.Is(err, ErrNotFound) {
				return nil, err
			}
		}
		b, err := m.Create(ctx, opts)
		if errors.Is(err, errExists) && ctx.Err() == nil {
			continue // made since we looked
		}
		if !errors.Is(err, errCreating) {
			return b, err
		}
		// Another call is creating it: its outcome is ours.
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("create box %s: %w", opts.ID, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// List returns the boxes that a filter selects, by id.
func (m *Manager) List(ctx context.Context, opts ListOptions) ([]*Box, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*Box, 0, len(m.boxes))
	for _, r := range m.boxes {
		if !r.creating && r.matches(opts) {
			list = append(list, &Box{m: m, r: r})
		}
	}
	slices.SortFunc(list, func(a, b *Box) int { return strings.Compare(a.ID(), b.ID()) })
	return list, nil
}

// Remove kills and deletes a box, with its own volume if it has one; a workspace
// stays. While the backend can't be asked the box stays listed.
func (m *Manager) Remove(ctx context.Context, id string) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	return b.Remove(ctx)
}

// Pools returns the pools in the configuration's order.
func (m *Manager) Pools() []PoolInfo {
	m.mu.Lock()
	pools := slices.Clone(m.pools)
	boxes := make(map[PoolName]int)
	for _, r := range m.boxes {
		boxes[r.Pool]++
	}
	m.mu.Unlock()
	infos := make([]PoolInfo, 0, len(pools))
	for _, p := range pools {
		info := PoolInfo{
			Name: p.conf.Name, Addr: p.conf.Addr, Connected: true, Boxes: boxes[p.name()],
			MaxPerUser: p.conf.MaxPerUser, MaxTotal: p.conf.MaxTotal,
			IdleTimeout: p.conf.IdleTimeout, MaxLifetime: p.conf.MaxLifetime,
		}
		if _, err := p.get(); err != nil {
			info.Connected, info.Reason = false, err.Error()
		} else if err := m.backends.Ready(p.name()); err != nil {
			info.Connected, info.Reason = false, err.Error()
		}
		infos = append(infos, info)
	}
	return infos
}

// Describe tells what a pool can do now; empty is the first pool.
func (m *Manager) Describe(ctx context.Context, poolName string) (BackendInfo, error) {
	p, err := m.pool(poolName)
	if err != nil {
		return BackendInfo{}, err
	}
	b, err := p.get()
	if err != nil {
		return BackendInfo{}, err
	}
	return b.Describe(ctx)
}

// Backend returns a pool's backend, for parts of the gateway that reach volumes.
func (m *Manager) Backend(poolName PoolName) (Backend, error) {
	p, err := m.pool(string(poolName))
	if err != nil {
		return nil, err
	}
	return p.get()
}
