// Package launch starts the plugin processes that pools name and keeps them
// running. A Launcher is a core.BackendSource: the backend of a pool stays valid
// while its plugin dies and is started again.
//
// There is one supervised process a kind, shared by the pools of that kind
// (supervisor, in supervise.go). Each time a process is started it is an
// instance (instance.go) over an operating-system process (process.go) whose log
// lines go to the gateway's log (logs.go). Only the files that a pool's kind
// names are run, and only after their owner and mode were checked (find.go).
//
// Lock order: Launcher.mu, then supervisor.mu.
package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
)

// Options are the settings of a Launcher.
type Options struct {
	// Dir is the folder with the plugins' binaries, plugin-<kind>.
	Dir string
	// StateDir is the gateway's state directory; pools get folders of it.
	StateDir string
	// Gateway identifies the gateway to the plugins.
	Gateway string
	// Hide lists paths of the host that no box may see.
	Hide []string
	// Log receives what an operator wants to know, and the plugins' own logs; nil:
	// nothing.
	Log *slog.Logger
	// Env is added to the small environment that plugins get, as KEY=value.
	Env []string

	// startTimeout, beatTimeout: see the constants; tests have less patience.
	startTimeout, beatTimeout time.Duration
}

// Budgets. The first is the patience of a call with a plugin that is starting;
// the others are those of a plugin to greet, to open a pool and to show a sign
// of life, which it owes us every two seconds.
const (
	callPatience = 10 * time.Second
	startTimeout = 10 * time.Second
	openTimeout  = 20 * time.Second
	beatTimeout  = 15 * time.Second
)

// Launcher brings the backends of pools from plugin processes.
type Launcher struct {
	o Options

	mu     sync.Mutex
	closed bool
	kinds  map[string]*supervisor
	pools  map[core.PoolName]*pool
}

var _ core.BackendSource = (*Launcher)(nil)

// New returns a Launcher, which starts nothing until a pool is opened. There is
// one for a state directory: sockets in it are those of a killed predecessor's
// plugins and are removed.
func New(o Options) *Launcher {
	clearSockets(o.StateDir)
	o.Log = logging.OrDiscard(o.Log)
	if o.startTimeout == 0 {
		o.startTimeout = startTimeout
	}
	if o.beatTimeout == 0 {
		o.beatTimeout = beatTimeout
	}
	return &Launcher{o: o, kinds: map[string]*supervisor{}, pools: map[core.PoolName]*pool{}}
}

// Open implements core.BackendSource. It waits for the plugin's first word on the
// pool, for ten seconds at most. What only a change of the configuration or of
// the installation can mend is an error of kind core.ErrInvalid: an unknown kind,
// a binary that is missing or not to be trusted, options that the plugin
// refuses. Anything else may heal: the pool is opened, and Ready tells.
func (l *Launcher) Open(ctx context.Context, p core.Pool) (core.Backend, error) {
	b, err := l.open(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("open pool %q: %w", p.Name, err)
	}
	return b, nil
}

func (l *Launcher) open(ctx context.Context, p core.Pool) (core.Backend, error) {
	kind, err := KindOf(p)
	if err != nil {
		return nil, err
	}
	cfg, err := l.config(p)
	if err != nil {
		return nil, err
	}
	if _, err := find(l.o.Dir, kind); err != nil {
		return nil, err
	}
	pl, err := l.add(kind, cfg)
	if err != nil {
		return nil, err
	}
	_, err = pl.Acquire(ctx, nil)
	if errors.Is(err, core.ErrInvalid) || errors.Is(err, core.ErrUnsupported) || ctx.Err() != nil {
		l.Close(context.WithoutCancel(ctx), cfg.Name)
		return nil, err
	}
	return pl.backend, nil
}

// config makes what the driver is told of a pool, and the pool's folder.
func (l *Launcher) config(p core.Pool) (core.PoolConfig, error) {
	if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/\x00") {
		return core.PoolConfig{}, core.Invalid("pool name %q can't be the name of a folder", p.Name)
	}
	options, err := json.Marshal(p.Options)
	if err != nil {
		return core.PoolConfig{}, core.Invalid("options of pool %q: %v", p.Name, err)
	}
	dir, err := filepath.Abs(filepath.Join(l.o.StateDir, "pools", p.Name))
	if err != nil {
		return core.PoolConfig{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return core.PoolConfig{}, fmt.Errorf("make the pool's state directory: %w", err)
	}
	return core.PoolConfig{
		Name: core.PoolName(p.Name), Addr: p.Addr, Options: options,
		StateDir: dir, Gateway: l.o.Gateway, Hide: l.o.Hide,
	}, nil
}

// add finds or makes the pool and the supervisor of its kind.
func (l *Launcher) add(kind string, cfg core.PoolConfig) (*pool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, core.ErrNotAvailable
	}
	if pl := l.pools[cfg.Name]; pl != nil {
		if pl.sup.kind != kind || !sameConfig(pl.cfg, cfg) {
			return nil, fmt.Errorf("%w: it is open with other settings; close it first", core.ErrConflict)
		}
		return pl, nil
	}
	s := l.kinds[kind]
	if s == nil {
		s = newSupervisor(kind, l.o)
		l.kinds[kind] = s
	}
	pl := newPool(s, cfg)
	l.pools[cfg.Name] = pl
	s.add(pl)
	return pl, nil
}

func sameConfig(a, b core.PoolConfig) bool {
	return a.Addr == b.Addr && string(a.Options) == string(b.Options) && slices.Equal(a.Hide, b.Hide)
}

// Close implements core.BackendSource. The process of the last pool of a kind is
// ended. Boxes stay. An unknown pool is success.
func (l *Launcher) Close(ctx context.Context, name core.PoolName) error {
	l.mu.Lock()
	pl := l.pools[name]
	delete(l.pools, name)
	var last *supervisor
	if pl != nil && pl.sup.remove(pl) == 0 {
		last = pl.sup
		delete(l.kinds, last.kind)
	}
	l.mu.Unlock()

	if pl == nil {
		return nil
	}
	if last != nil {
		last.stop()
		return nil
	}
	return pl.sup.forget(ctx, name)
}

// Ready implements core.BackendSource.
func (l *Launcher) Ready(name core.PoolName) error {
	l.mu.Lock()
	pl := l.pools[name]
	l.mu.Unlock()

	if pl == nil {
		return fmt.Errorf("%w: %s", core.ErrPoolNotFound, name)
	}
	return pl.sup.ready(pl)
}

// Plugins returns the state of every plugin, by kind.
func (l *Launcher) Plugins() []State {
	l.mu.Lock()
	kinds := slices.Sorted(maps.Keys(l.kinds))
	states := make([]State, len(kinds))
	for i, k := range kinds {
		states[i] = l.kinds[k].snapshot()
	}
	l.mu.Unlock()

	return states
}

// Shutdown ends every plugin process and waits for their end. Boxes stay. It may
// be called more than once.
func (l *Launcher) Shutdown() {
	l.mu.Lock()
	l.closed = true
	sups := slices.Collect(maps.Values(l.kinds))
	l.mu.Unlock()

	var wg sync.WaitGroup
	for _, s := range sups {
		wg.Go(s.stop)
	}
	wg.Wait()
}
