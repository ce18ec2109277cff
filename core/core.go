// Package core is the vocabulary of the gateway and its heart. This file has
// every noun and interface that parts share. Manager creates, runs, watches and
// reaps boxes on pools; Box and Host are handles on what runs; both reach
// backends, mounts, volumes and tokens only through the interfaces below, which
// a Config brings in.
//
// Lock order: Manager.mu, then a record's mu. Nothing outside of this package is
// called with either held.
package core

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"time"

	"github.com/yaoapp/sbgw/workspace"
)

// Nouns that package workspace defines.
type (
	// WorkspaceID names a workspace, or, for a box that has none, the box's own
	// volume, which has the box's id.
	WorkspaceID = workspace.ID
	// Owner names who a box or workspace belongs to.
	Owner = workspace.Owner
	// PoolName names a pool.
	PoolName = workspace.PoolName
)

// BoxID names a box, unique in a gateway.
type BoxID string

// Incarnation is an opaque string from the backend that changes with every start
// of a box's main process. It is compared for equality only; empty stands for
// whichever there is.
type Incarnation string

// VolumeSession is a volume's name at its Volume server.
type VolumeSession string

// Cursor is a place in a backend's event feed; empty is the beginning.
type Cursor string

// BoxRef is a box in one incarnation. A call with another incarnation than the
// present one is ErrConflict.
type BoxRef struct {
	ID          BoxID
	Incarnation Incarnation
}

// APIVersion is the version of the backend contract that this build speaks; a
// plugin built for an older one still works.
const APIVersion = 1

// Labels that the gateway sets on every box; a caller can't override them.
const (
	LabelGateway   = "sbgw.gateway"
	LabelBox       = "sbgw.box"
	LabelOwner     = "sbgw.owner"
	LabelPool      = "sbgw.pool"
	LabelPolicy    = "sbgw.policy"
	LabelWorkspace = "sbgw.workspace"
	LabelCreated   = "sbgw.created"
	LabelIdle      = "sbgw.idle-timeout"
	LabelStop      = "sbgw.stop-timeout"
)

// Driver is a kind of backend, one per plugin process. All methods may be called
// concurrently.
type Driver interface {
	// Describe tells who the driver is.
	Describe(ctx context.Context) (DriverInfo, error)
	// Open makes a pool ready: it checks the options (ErrInvalid names the wrong
	// one), and connects. Opening an open pool with the same configuration returns
	// the same backend.
	Open(ctx context.Context, p PoolConfig) (Backend, error)
	// Close forgets a pool; its boxes stay. An unknown one is success.
	Close(ctx context.Context, p PoolName) error
}

// DriverInfo is who a driver is.
type DriverInfo struct {
	Kind       string
	Version    string
	APIVersion int
}

// PoolConfig is what a driver is told of a pool.
type PoolConfig struct {
	Name PoolName
	Addr string
	// Options is the pool's own table of the configuration as a JSON object,
	// checked by the driver; unknown keys are errors.
	Options json.RawMessage
	// StateDir is a directory that is the pool's alone and survives restarts.
	StateDir string
	// Gateway identifies the gateway among others that use the same backend.
	Gateway string
	// Hide lists paths of the host that no box may see.
	Hide []string
}

// Backend is one pool of a driver. Every call is idempotent by box id, safe to
// repeat after a lost answer and to run concurrently, and blocks until done or
// the context ends. Abilities beyond these methods are found by Has.
type Backend interface {
	// Describe tells what the pool can do now.
	Describe(ctx context.Context) (BackendInfo, error)
	// Create makes a box and, unless the spec says otherwise, starts it: all or
	// nothing. A box of this id with the same spec is success, with another one
	// ErrConflict. An option that the backend does not have is ErrUnsupported.
	Create(ctx context.Context, s BoxSpec) (BoxState, error)
	// Start starts a stopped box; a running one is success.
	Start(ctx context.Context, b BoxRef) (BoxState, error)
	// Stop sends SIGTERM, after grace SIGKILL; a stopped box is success.
	Stop(ctx context.Context, b BoxRef, grace time.Duration) (BoxState, error)
	// Remove kills and deletes a box; absent is success. Volumes stay.
	Remove(ctx context.Context, b BoxRef) error
	// Inspect returns a box's state, or ErrNotFound.
	Inspect(ctx context.Context, id BoxID) (BoxState, error)
	// List returns every box of the pool, those of other gateways too.
	List(ctx context.Context) ([]BoxState, error)
	// Watch calls f with the state of every box, then with Synced, then with each
	// change, until the context ends or f fails, and returns why it ended.
	Watch(ctx context.Context, from Cursor, f func(BoxEvent) error) error
}

// Ability names something that a backend can do beyond Backend.
type Ability string

// The abilities, with the interface of each.
const (
	AbilityExec          Ability = "exec"           // Execer
	AbilityVolume        Ability = "volume"         // VolumeOpener
	AbilityVolumeRemoval Ability = "volume-removal" // VolumeRemover
)

// BackendInfo is what a pool can do now.
type BackendInfo struct {
	Node           string
	Runtime        string
	RuntimeVersion string
	OS, Arch       string
	Abilities      []Ability
	// Network is what boxes get: none, host, bridge.
	Network string
}

// Has returns b as T if b declares the ability and implements it; otherwise the
// error is ErrUnsupported and names the ability.
func Has[T any](ctx context.Context, b Backend, a Ability) (T, error) {
	var none T
	info, err := b.Describe(ctx)
	if err != nil {
		return none, err
	}
	t, ok := b.(T)
	if !ok || !slices.Contains(info.Abilities, a) {
		return none, Unsupported(string(a))
	}
	return t, nil
}

// Execer runs processes in boxes.
type Execer interface {
	// Exec starts a process in a running box. The context bounds the start only;
	// the caller ends the Process by Wait and Close.
	Exec(ctx context.Context, b BoxRef, s ExecSpec) (Process, error)
}

// VolumeOpener tells where the bytes of a volume are served.
type VolumeOpener interface {
	// OpenVolume returns the endpoint of a volume. With create an absent one is
	// made; without, it is ErrNotFound.
	OpenVolume(ctx context.Context, s VolumeSession, create bool) (Endpoint, error)
}

// VolumeRemover deletes volumes.
type VolumeRemover interface {
	// RemoveVolume deletes a volume with all its files; absent is success, one
	// that a box is bound to is ErrConflict.
	RemoveVolume(ctx context.Context, s VolumeSession) error
}

// ExecSpec is a process to start. The zero User, Dir and Env mean the box's own.
type ExecSpec struct {
	Cmd  []string
	Env  []string // KEY=value, added to the box's
	Dir  string
	User string // name or uid, with :group or :gid
	TTY  bool   // one stream, in Stdout
	Size WindowSize
	// Stdin: without it the process reads end-of-file.
	Stdin bool
	// NoEvent: nobody needs ExecExit.Event, so the exit does not wait for it.
	NoEvent bool
}

// WindowSize is a terminal's size in characters.
type WindowSize struct{ Rows, Cols uint16 }

// Process is a started process. Its methods may be called concurrently, each
// stream by one goroutine. A stream that nobody reads holds back at most 256 KiB
// and never the other one, nor the exit.
type Process interface {
	// Stdin is the process's standard input; Close ends it.
	Stdin() io.WriteCloser
	// Stdout and Stderr end with io.EOF when all that was written has been read.
	Stdout() io.Reader
	Stderr() io.Reader
	// Resize tells the terminal's new size.
	Resize(s WindowSize) error
	// Signal sends a Linux signal to the process, or to its whole group.
	Signal(sig int, group bool) error
	// Wait returns how the process ended. A link lost before that is
	// ErrPluginGone or ErrUnavailable, and an end that nobody saw is
	// ErrExitUnknown: never an invented code. May be called more than once.
	Wait() (ExecExit, error)
	// Close lets go of the process without ending it, and frees what the handle
	// holds. Always call it.
	Close() error
}

// ExecExit is how a process ended.
type ExecExit struct {
	// Code is as a shell says it: 127 not found, 126 not executable, 128+n
	// killed by signal n.
	Code   int
	Reason Reason
	// Event is at or after everything the process changed in the box's volume;
	// zero where the backend can't tell.
	Event Event
}

// Reason says why something ended.
type Reason string

// Reasons.
const (
	ReasonExited   Reason = "exited"
	ReasonOOM      Reason = "oom"
	ReasonKilled   Reason = "killed"
	ReasonNodeLost Reason = "node-lost"
	ReasonUnknown  Reason = "unknown"
)

// Event is a point in the event sequence of one Volume server process. The zero
// Event is none.
type Event struct {
	Session VolumeSession
	Boot    string
	Number  uint64
}

// Endpoint is where a volume is served.
type Endpoint struct {
	Kind     EndpointKind
	Address  string
	Argv     []string
	Session  VolumeSession
	Token    []byte
	ReadOnly bool
	// Instance changes when the bytes behind the endpoint are others.
	Instance string
}

// EndpointKind says how an Endpoint is reached.
type EndpointKind string

// Endpoint kinds.
const (
	EndpointDir    EndpointKind = "dir"    // Address is a local directory
	EndpointUnix   EndpointKind = "unix"   // Address is a unix socket's path
	EndpointTCP    EndpointKind = "tcp"    // Address is host:port
	EndpointCmd    EndpointKind = "cmd"    // Argv is run for each connection
	EndpointBridge EndpointKind = "bridge" // Address is a socket of the plugin
)

// BoxSpec is a box to make.
type BoxSpec struct {
	ID         BoxID
	Image      string
	Cmd        []string // empty: the backend's keep-alive process
	Env        []string // KEY=value
	WorkDir    string
	User       string
	Memory     int64   // bytes; 0 is no limit
	CPUs       float64 // cores; 0 is no limit
	PIDs       int64   // processes; 0 is the backend's default
	VNC        bool
	Ports      []PortMapping
	Mounts     []VolumeMount
	Labels     map[string]string
	NotStarted bool
}

// VolumeMount binds a volume into a box.
type VolumeMount struct {
	Session  VolumeSession
	Target   string
	ReadOnly bool
}

// Status is what a box does.
type Status string

// Statuses of a box.
const (
	StatusCreated Status = "created" // made, never started
	StatusRunning Status = "running"
	StatusStopped Status = "stopped"
	StatusPaused  Status = "paused"
	StatusUnknown Status = "unknown" // its pool can't be asked now
)

// BoxState is what a backend knows of a box.
type BoxState struct {
	ID          BoxID
	Incarnation Incarnation
	ContainerID string
	Status      Status
	Reason      Reason // of a stopped box
	ExitCode    *int   // nil: unknown
	Image       string
	Labels      map[string]string
	CreatedAt   time.Time
	StartedAt   time.Time
	FinishedAt  time.Time
	Execs       int // processes of execs still running
	Processes   int
	Ports       []PortMapping
	IP          string
	Network     string
	Mounts      []VolumeMount
}

// BoxEvent is one message of a backend's feed: a state, a removal, or Synced
// after everything there was.
type BoxEvent struct {
	Cursor  Cursor
	State   *BoxState
	Removed BoxID
	Synced  bool
}

// BackendSource brings backends; plugins/launch implements it, tests bring a fake.
type BackendSource interface {
	// Open returns the backend of a pool, whose plugin may still be starting:
	// calls to it then wait or fail with ErrUnavailable. The backend stays valid
	// over restarts of its plugin.
	Open(ctx context.Context, p Pool) (Backend, error)
	// Close forgets the pool.
	Close(ctx context.Context, p PoolName) error
	// Ready tells whether a pool's backend answers now, or why not.
	Ready(p PoolName) error
}

// MountOptions are the settings of one mount.
type MountOptions struct {
	Symlinks string // contain, raw, nofollow
	Owner    string // squash, none
	UID, GID int
	ReadOnly bool
}

// Mounter shows volumes as local directories; mountd's client implements it.
// Unknown workspaces are ErrNotFound but for Detach.
type Mounter interface {
	// Attach mounts a volume and returns its path; attached already, it is bound
	// again to the endpoint.
	Attach(ctx context.Context, w WorkspaceID, e Endpoint, o MountOptions) (path string, err error)
	// Detach unmounts; absent is success.
	Detach(ctx context.Context, w WorkspaceID) error
	// Settle returns when everything acknowledged is applied, or why not.
	Settle(ctx context.Context, w WorkspaceID) error
	// Refresh returns when the mount's caches and the kernel's are rid of
	// everything that changes up to e made untrue.
	Refresh(ctx context.Context, w WorkspaceID, e Event) error
	// Mounts lists the mounts.
	Mounts(ctx context.Context) ([]MountState, error)
}

// MountState is one mount.
type MountState struct {
	Workspace WorkspaceID
	Path      string
	Link      string // up, down
	OpenFiles int
	Errors    []string // what no system call has reported
}

// VolumeGate is what core asks of Volume servers around an exec.
type VolumeGate interface {
	// Recall returns when no other holder keeps changes back.
	Recall(ctx context.Context, w WorkspaceID, e Endpoint) error
	// Barrier returns an event at or after every change complete before the call.
	Barrier(ctx context.Context, w WorkspaceID, e Endpoint) (Event, error)
}

// Store keeps small records over restarts. Its methods may be called
// concurrently; Put is durable when it returns.
type Store interface {
	Put(bucket, key string, value []byte) error
	// Get returns nil for an absent key.
	Get(bucket, key string) ([]byte, error)
	Delete(bucket, key string) error
	// All returns a bucket's records by key.
	All(bucket string) (map[string][]byte, error)
}

// TokenIssuer makes the tokens that a box calls back with.
type TokenIssuer interface {
	Issue(ctx context.Context, box BoxID, owner Owner, scopes []string) (access, refresh string, err error)
	Revoke(ctx context.Context, refresh string) error
}
