package core

import (
	"io"
	"log/slog"
	"time"
)

// Config is what a Manager is made of.
type Config struct {
	// Pool lists the pools; the first is the default one.
	Pool []Pool

	// Backends brings the pools' backends. Without it Init answers ErrNotAvailable.
	Backends BackendSource
	// Mounts shows workspaces as directories; nil: no mounts.
	Mounts Mounter
	// MountOptions are those of every mount.
	MountOptions MountOptions
	// Volumes takes part in barriers; nil: only what exec itself reports.
	Volumes VolumeGate
	// Tokens issues box tokens; nil: none.
	Tokens TokenIssuer
	// State keeps records over restarts; nil: in memory.
	State Store
	// Gateway identifies this gateway in labels.
	Gateway string
	// Log receives what an operator wants to know; nil: nothing.
	Log *slog.Logger
}

// Pool is named capacity on one backend endpoint.
type Pool struct {
	Name string
	// Addr is local, tai://host:port, tunnel://id, docker://…, unix://…, tcp://…,
	// ssh://…, k8s://context.
	Addr string
	// Plugin names the plugin kind where the address does not.
	Plugin string
	// Options is the plugin's own table, checked by it.
	Options     map[string]any
	MaxPerUser  int           // 0 = unlimited
	MaxTotal    int           // 0 = unlimited
	IdleTimeout time.Duration // 0 = no idle clean-up
	MaxLifetime time.Duration // 0 = no limit
	StopTimeout time.Duration // grace between SIGTERM and SIGKILL; 0 = DefaultStopTimeout
}

// DefaultStopTimeout is the grace period of a pool that sets none.
const DefaultStopTimeout = 2 * time.Second

// DefaultWorkDir is where a workspace is mounted in a box, and where commands
// start, unless the options say otherwise.
const DefaultWorkDir = "/workspace"

// LifecyclePolicy says when a box is cleaned up.
type LifecyclePolicy string

// The policies.
const (
	OneShot     LifecyclePolicy = "oneshot"     // removed after the first Exec
	Session     LifecyclePolicy = "session"     // removed after idle timeout
	LongRunning LifecyclePolicy = "longrunning" // stopped after idle, removed after max lifetime
	Persistent  LifecyclePolicy = "persistent"  // never cleaned up
)

// CreateOptions describe a box to create.
type CreateOptions struct {
	ID          string // empty: a new one
	Owner       string
	Labels      map[string]string
	Pool        string // empty: the first pool
	Image       string // required
	WorkDir     string // default DefaultWorkDir; made if absent
	User        string
	Env         map[string]string
	Memory      int64   // bytes; 0 = unlimited
	CPUs        float64 // 0 = unlimited
	VNC         bool
	Ports       []PortMapping
	Policy      LifecyclePolicy // default Session
	IdleTimeout time.Duration   // overrides the pool's
	StopTimeout time.Duration   // overrides the pool's
	WorkspaceID string          // empty: a volume of the box's own
	MountMode   string          // "rw" (default) or "ro"
	MountPath   string          // default DefaultWorkDir
}

// ListOptions filter boxes; an empty field filters nothing, labels are ANDed.
type ListOptions struct {
	Owner  string
	Pool   string
	Labels map[string]string
}

// PortMapping publishes a port of a box.
type PortMapping struct {
	ContainerPort int
	HostPort      int    // 0 = auto-assign
	HostIP        string // default 127.0.0.1
	Protocol      string // "tcp" (default), "udp"
}

// ExecResult is a finished command.
type ExecResult struct {
	ExitCode int
	Stdout   string
	Stderr   string
}

// ExecStream is a running command.
type ExecStream struct {
	Stdout io.ReadCloser
	Stderr io.ReadCloser
	Stdin  io.WriteCloser
	// Wait blocks until the command ended and returns its exit code.
	Wait func() (int, error)
	// Cancel kills the command's process group.
	Cancel func()
	// Resize tells a terminal's size.
	Resize func(WindowSize) error
}

// BoxInfo is what is known of a box now.
type BoxInfo struct {
	ID           string
	ContainerID  string
	Pool         string
	Owner        string
	Status       string
	Policy       LifecyclePolicy
	Labels       map[string]string
	Image        string
	CreatedAt    time.Time
	LastActive   time.Time
	ProcessCount int
	VNC          bool

	// Beyond the first specification.
	Workspace   string
	Ports       []PortMapping
	IP          string
	Network     string
	Reason      string
	ExitCode    *int
	Incarnation string
}

// PoolInfo is what is known of a pool now.
type PoolInfo struct {
	Name        string
	Addr        string
	Connected   bool
	Boxes       int
	MaxPerUser  int
	MaxTotal    int
	IdleTimeout time.Duration
	MaxLifetime time.Duration

	// Reason says why a pool is not connected.
	Reason string
}
