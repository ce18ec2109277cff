// Package tai is the driver of pools whose boxes run on a tai node. A pool with
// the address local has a node of its own on this machine: a process that the
// driver starts (process.go), watches and starts again (keeper.go), and that
// outlives it. It is found again by its socket in the pool's state directory.
package tai

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"sync"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/plugins/steady"
)

// Kind is the kind of the driver.
const Kind = "tai"

// Driver drives tai nodes.
type Driver struct {
	version string
	log     *slog.Logger

	mu    sync.Mutex
	pools map[core.PoolName]*pool
}

var _ core.Driver = (*Driver)(nil)

// pool is an open pool.
type pool struct {
	cfg     core.PoolConfig
	keeper  *keeper
	backend core.Backend
}

// New returns a driver without pools.
func New(version string, log *slog.Logger) *Driver {
	return &Driver{version: version, log: logging.OrDiscard(log), pools: map[core.PoolName]*pool{}}
}

// Describe implements core.Driver.
func (d *Driver) Describe(context.Context) (core.DriverInfo, error) {
	return core.DriverInfo{Kind: Kind, Version: d.version, APIVersion: core.APIVersion}, nil
}

// Open implements core.Driver. It returns when the node answers, or says why it
// does not; it has then left nothing behind but the node.
func (d *Driver) Open(ctx context.Context, cfg core.PoolConfig) (core.Backend, error) {
	o, err := parseOptions(cfg.Options)
	if err != nil {
		return nil, fmt.Errorf("options of pool %s: %w", cfg.Name, err)
	}
	if cfg.Addr != "local" {
		return nil, core.Unsupported("node addresses other than local, such as " + cfg.Addr)
	}
	p, err := d.add(cfg, o)
	if err != nil {
		return nil, err
	}
	if _, err := p.keeper.Acquire(ctx, nil); err != nil {
		d.Close(ctx, cfg.Name)
		return nil, err
	}
	return p.backend, nil
}

// add finds or makes the pool.
func (d *Driver) add(cfg core.PoolConfig, o options) (*pool, error) {
	socket := filepath.Join(cfg.StateDir, "node.sock")
	if len(socket) > socketPath {
		return nil, core.Invalid("the state directory's path is too long: %s has %d bytes, the path of a socket has at most %d",
			socket, len(socket), socketPath)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.pools[cfg.Name]; p != nil {
		if !same(p.cfg, cfg) {
			return nil, fmt.Errorf("%w: pool %s is open with other settings; close it first", core.ErrConflict, cfg.Name)
		}
		return p, nil
	}
	k := newKeeper(cfg.Name, newProcess(cfg, o, socket), d.log.With(logging.Pool, cfg.Name))
	p := &pool{cfg: cfg, keeper: k, backend: steady.New(k, core.ErrUnavailable)}
	if o.Direct {
		p.backend = &direct{Backend: steady.New(k, core.ErrUnavailable), volumes: filepath.Join(cfg.StateDir, "volumes")}
	}
	d.pools[cfg.Name] = p
	return p, nil
}

// socketPath is what the address of a unix socket holds (unix(7)).
const socketPath = 107

func same(a, b core.PoolConfig) bool {
	return a.Addr == b.Addr && a.StateDir == b.StateDir && a.Gateway == b.Gateway &&
		string(a.Options) == string(b.Options) && slices.Equal(a.Hide, b.Hide)
}

// Close implements core.Driver. The node stays.
func (d *Driver) Close(_ context.Context, name core.PoolName) error {
	d.mu.Lock()
	p := d.pools[name]
	delete(d.pools, name)
	d.mu.Unlock()

	if p != nil {
		p.keeper.stop()
	}
	return nil
}

// direct is a pool whose mounts go to the files themselves instead of through the
// node.
type direct struct {
	*steady.Backend
	volumes string
}

// OpenVolume implements core.VolumeOpener.
func (d *direct) OpenVolume(ctx context.Context, s core.VolumeSession, create bool) (core.Endpoint, error) {
	e, err := d.Backend.OpenVolume(ctx, s, create)
	if err != nil {
		return core.Endpoint{}, err
	}
	// The node has refused names that mean something to a path, and escapes the
	// slash of a name of two parts in this way.
	dir := filepath.Join(d.volumes, url.PathEscape(string(s)))
	return core.Endpoint{Kind: core.EndpointDir, Address: dir, Session: s, ReadOnly: e.ReadOnly, Instance: e.Instance}, nil
}
