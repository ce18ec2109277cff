// Package config is the gateway's configuration: one struct, its defaults, how it
// is read from a file and the environment, and what makes it valid. A flag
// overrides the environment, that the file, and that the default.
package config

import (
	"os"
	"path/filepath"
	"time"
)

// Config is everything that the gateway can be told.
type Config struct {
	Gateway Gateway
	Mount   Mount
	Plugins Plugins
	Pools   []Pool
}

// Gateway is the daemon's own section.
type Gateway struct {
	// Listen is the address of the API, unix:///path.
	Listen string `toml:"listen"`
	// StateDir holds what survives a restart, and sockets of child processes.
	StateDir string `toml:"state_dir"`
}

// Mount is how workspaces are shown as directories.
type Mount struct {
	// Root has one directory for each workspace.
	Root string `toml:"root"`
	// Owner is squash (everything appears owned by the gateway's user) or none.
	Owner string `toml:"owner"`
	// AllowOther lets other users than the gateway's into the mounts.
	AllowOther bool `toml:"allow_other"`
	// Symlinks is contain, raw or nofollow.
	Symlinks string `toml:"symlinks"`
}

// Plugins is where plugin binaries are.
type Plugins struct {
	// Dir is absolute, or relative to the folder of the sbgw executable.
	Dir string `toml:"dir"`
}

// Pool is named capacity on one backend.
type Pool struct {
	Name string
	Addr string
	// Plugin is the kind of plugin; empty: told by the address.
	Plugin      string
	MaxTotal    int           // 0 is no limit
	MaxPerUser  int           // 0 is no limit
	IdleTimeout time.Duration // 0 is none
	MaxLifetime time.Duration // 0 is none
	StopTimeout time.Duration
	// Hide lists paths of the host that no box of the pool may see.
	Hide []string
	// Options is the plugin's own table.
	Options map[string]any
}

// DefaultPool is the pool there is when the file has none.
const DefaultPool = "local"

// Default returns the configuration of an empty file for the present user.
func Default() Config { return defaults(os.Geteuid() == 0, os.Getenv) }

// SystemStateDir is the state directory of a gateway that root runs.
const SystemStateDir = "/var/lib/sbgw"

func defaults(root bool, getenv func(string) string) Config {
	listen, state := "/run/sbgw/sbgw.sock", SystemStateDir
	if !root {
		listen, state = userPaths(getenv)
	}
	return Config{
		Gateway: Gateway{Listen: "unix://" + listen, StateDir: state},
		Mount:   Mount{Root: filepath.Join(state, "mnt"), Owner: "squash", AllowOther: root, Symlinks: "contain"},
		Plugins: Plugins{Dir: "plugins"},
		Pools:   []Pool{defaultPool(DefaultPool, "local")},
	}
}

// userPaths are the socket and the state directory of a user that is not root, by
// the XDG base directory specification.
func userPaths(getenv func(string) string) (listen, state string) {
	home := getenv("HOME")
	if home == "" {
		home = "/"
	}
	state = filepath.Join(home, ".local", "state", "sbgw")
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		state = filepath.Join(d, "sbgw")
	}
	listen = filepath.Join(state, "sbgw.sock")
	if d := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		listen = filepath.Join(d, "sbgw", "sbgw.sock")
	}
	return listen, state
}

func defaultPool(name, addr string) Pool {
	return Pool{
		Name: name, Addr: addr,
		MaxTotal: 20, MaxPerUser: 5,
		IdleTimeout: 30 * time.Minute, MaxLifetime: 24 * time.Hour, StopTimeout: 2 * time.Second,
	}
}

// SocketPath returns the path of the API's unix socket.
func (c Config) SocketPath() string { return socketPath(c.Gateway.Listen) }

// PluginsDir returns the absolute folder of the plugin binaries, given the path of
// the sbgw executable.
func (c Config) PluginsDir(program string) string {
	if filepath.IsAbs(c.Plugins.Dir) {
		return c.Plugins.Dir
	}
	if real, err := filepath.EvalSymlinks(program); err == nil {
		program = real
	}
	return filepath.Join(filepath.Dir(program), c.Plugins.Dir)
}
