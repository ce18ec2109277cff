// Package gateway is the daemon: it makes the parts of a configuration, wires
// them, and serves sbgw.gateway.v1 on a unix socket. Embed is for programs that
// are a gateway beside other things, Run is `sbgw serve`.
//
// A Gateway owns its state directory (statedir.go), the API's socket (socket.go),
// the plugins (package plugins/launch), a connection to the mount process, which
// it starts where there is none and replaces when it died (mounts.go), and
// clients of Volume servers for barriers (volumes.go). Boxes, nodes, the mount
// process and its mounts outlive it, unless Shutdown ends them (shutdown.go).
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/config"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/internal/state"
	"github.com/yaoapp/sbgw/plugins/launch"
	"github.com/yaoapp/sbgw/workspace"
)

// Config is the configuration, as in sbgw.toml.
type Config = config.Config

// DefaultConfig returns the configuration of an empty file for this user.
func DefaultConfig() Config { return config.Default() }

// LoadConfig returns the defaults overridden by a file and the environment.
func LoadConfig(path string) (Config, error) { return config.Load(path) }

// Options are what a gateway is made of.
type Options struct {
	Config Config
	// Program is the sbgw executable, which the mount process is started from and
	// a relative plugins.dir is found by; empty is the running program.
	Program string
	Version string
	// Log receives what an operator wants to know; nil: nothing.
	Log *slog.Logger
}

// Gateway is a running gateway.
type Gateway struct {
	conf       Config
	version    string
	log        *slog.Logger
	started    time.Time
	lock       *os.File
	store      *state.Store
	launcher   *launch.Launcher
	mounts     *mounts
	volumes    *volumes
	manager    *core.Manager
	workspaces *workspace.Manager
	listener   net.Listener
	server     *grpc.Server

	work  sync.WaitGroup
	ready chan struct{} // closed when boxes are known
	told  chan struct{} // closed when the API was told to end the gateway
	done  chan struct{} // closed when the gateway has ended

	shutdownOnce sync.Once

	mu       sync.Mutex
	stopping bool
	closed   bool
}

// Run is a gateway until the context ends or its API is told to shut it down.
func Run(ctx context.Context, o Options) error {
	g, err := Embed(ctx, o)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-g.told:
	}
	return g.Close()
}

// Embed starts a gateway and returns when its boxes are known, at the latest
// after the time that core's Manager waits for pools. A pool that does not answer
// is no error: Status tells. The caller ends the gateway by Close.
func Embed(ctx context.Context, o Options) (*Gateway, error) {
	if err := o.Config.Validate(); err != nil {
		return nil, fmt.Errorf("%w: configuration: %w", core.ErrInvalid, err)
	}
	if o.Program == "" {
		program, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the sbgw executable: %w", err)
		}
		o.Program = program
	}
	g := &Gateway{
		conf: o.Config, version: o.Version, log: logging.OrDiscard(o.Log), started: time.Now(),
		ready: make(chan struct{}), told: make(chan struct{}), done: make(chan struct{}),
	}
	if err := g.start(ctx, o.Program); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// start makes the parts in their order. What it made is undone by Close.
func (g *Gateway) start(ctx context.Context, program string) (err error) {
	if err := prepareStateDir(g.conf); err != nil {
		return err
	}
	if g.lock, err = lockStateDir(g.conf.Gateway.StateDir); err != nil {
		return err
	}
	if err := checkFUSE(); err != nil {
		return err
	}
	sudo := sudoUser()
	if g.listener, err = listen(g.conf.SocketPath(), sudo); err != nil {
		return err
	}
	if g.store, err = state.Open(g.statePath("state.db")); err != nil {
		return err
	}
	id, err := loadID(g.statePath("gateway.id"))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(g.statePath("plugins")); err != nil { // sockets of a killed gateway's plugins
		return fmt.Errorf("clear the plugins' sockets: %w", err)
	}
	g.launcher = launch.New(launch.Options{
		Dir: g.conf.PluginsDir(program), StateDir: g.conf.Gateway.StateDir, Gateway: id,
		Hide: g.hidden(), Log: g.log,
	})
	if g.mounts, err = openMounts(ctx, g.conf, program, g.log); err != nil {
		return err
	}
	if err := g.makeCore(id); err != nil {
		return err
	}
	g.mounts.remount = g.manager.Remount
	g.serve(sudo)
	if err := g.manager.Start(ctx); err != nil {
		return err
	}
	g.work.Go(g.mounts.supervise)
	close(g.ready)
	g.log.Info("gateway ready", logging.Addr, g.conf.Gateway.Listen, logging.PID, os.Getpid(), logging.Version, g.version)
	return nil
}

func (g *Gateway) statePath(name string) string {
	return filepath.Join(g.conf.Gateway.StateDir, name)
}

// hidden lists what no box may see: what is this gateway's own or the system's
// gateway's, whose sockets a box's root could talk to, and what the pools name. A
// path that one pool hides is hidden in all of them.
func (g *Gateway) hidden() []string {
	paths := []string{g.conf.Gateway.StateDir, g.conf.Mount.Root, g.conf.SocketPath(), config.SystemStateDir}
	for _, p := range g.conf.Pools {
		paths = append(paths, p.Hide...)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func (g *Gateway) makeCore(id string) error {
	g.volumes = newVolumes(g.mounts.spawn.Socket, g.log)
	var pools []core.Pool
	for _, p := range g.conf.Pools {
		pools = append(pools, core.Pool{
			Name: p.Name, Addr: p.Addr, Plugin: p.Plugin, Options: p.Options, MaxPerUser: p.MaxPerUser, MaxTotal: p.MaxTotal,
			IdleTimeout: p.IdleTimeout, MaxLifetime: p.MaxLifetime, StopTimeout: p.StopTimeout,
		})
	}
	var err error
	g.manager, err = core.New(core.Config{
		Pool: pools, Backends: g.launcher, Mounts: g.mounts, Volumes: g.volumes, State: g.store, Gateway: id, Log: g.log,
		MountOptions: core.MountOptions{
			Symlinks: g.conf.Mount.Symlinks, Owner: g.conf.Mount.Owner, UID: os.Geteuid(), GID: os.Getegid(),
		},
	})
	if err != nil {
		return err
	}
	g.workspaces = workspace.NewManager(workspace.Config{
		Store: g.store, Opener: opener{volumes: g.volumes, backend: g.manager.Backend}, Pools: g.poolNames,
	})
	g.manager.SetWorkspaceManager(g.workspaces)
	return nil
}

func (g *Gateway) poolNames() []workspace.PoolName {
	var names []workspace.PoolName
	for _, p := range g.manager.Pools() {
		names = append(names, workspace.PoolName(p.Name))
	}
	return names
}

// Manager returns the gateway's manager of boxes.
func (g *Gateway) Manager() *core.Manager { return g.manager }

// Workspaces returns the gateway's manager of workspaces.
func (g *Gateway) Workspaces() *workspace.Manager { return g.workspaces }

// Told is closed when a client asked the gateway to end. The owner then calls
// Close.
func (g *Gateway) Told() <-chan struct{} { return g.told }

// loadID returns the name by which boxes know their gateway. It is not in the
// database, so that losing that loses no box.
func loadID(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		if id := strings.TrimSpace(string(data)); workspace.CheckID(id) == nil {
			return id, nil
		}
		return "", fmt.Errorf("%w: %s has no gateway's id in it; without the right one the gateway doesn't know its boxes", core.ErrInvalid, path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the gateway's id: %w", err)
	}
	id := "gw-" + strings.ToLower(rand.Text()[:16])
	if err := atomicWrite(path, []byte(id+"\n")); err != nil {
		return "", fmt.Errorf("write the gateway's id: %w", err)
	}
	return id, nil
}

// atomicWrite replaces a file by one that is complete and on the disk.
func atomicWrite(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// checkFUSE tells what is missing for mounts before the first one fails.
func checkFUSE() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		return f.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no /dev/fuse: load the kernel module with `modprobe fuse`; in a container, start it with --device /dev/fuse", core.ErrUnavailable)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: /dev/fuse: %w; run as root, or let this user open it; in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN", core.ErrPermission, err)
	}
	return fmt.Errorf("%w: /dev/fuse: %w; load the kernel module with `modprobe fuse`", core.ErrUnavailable, err)
}
