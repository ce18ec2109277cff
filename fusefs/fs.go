// Package fusefs shows a volume as a FUSE file system. FS implements go-fuse's
// raw interface on a node table of its own: a node is an object of the volume,
// found by the server's identity and never by path or inode number, so a name
// that comes to mean another object gets another node and no reader sees a
// foreign file's bytes under its descriptor.
//
// Every change waits for the server (strict mode). What the kernel caches has a
// lifetime of at most a second and is dropped sooner by the server's events:
//
//   - fs.go, request.go: the mount, and one request's way to the server and back,
//     with the rules for interrupts and killed callers;
//   - node.go: the node table; file.go, dir.go: opens;
//   - lookup.go, setattr.go, change.go, io.go, lock.go, xattr.go, symlink.go: the
//     operations;
//   - event.go, notify.go: invalidation; session.go: a server that restarted;
//   - errno.go: the one place where an error becomes an errno;
//   - server.go: INIT settings and go-fuse's driver.
//
// Locks: FS.mu guards the tables and every field of nodes and opens that says
// so; a directory stream's mu is taken before it. Neither is held over a call to
// the volume or the kernel, but for the stream's, which orders the reads of one
// open directory.
package fusefs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/yaoapp/sbgw/internal/logging"
	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// Volume is the client of a volume that an FS works on; *volume.Client is one.
type Volume interface {
	// Do sends one request. An errno from the server is a syscall.Errno;
	// volume.ErrSessionLost says that handles are to be reclaimed first.
	Do(ctx context.Context, r *volumev1.Request) (*volumev1.Reply, error)
	// Hello returns the welcome of the present session.
	Hello() *volumev1.HelloResponse
	// Up tells whether the server answers now.
	Up() bool
	// StatFs returns the numbers that the server sent last, or nil.
	StatFs() *volumev1.StatFsResult
}

// Symlinks is what the mount does with symbolic links.
type Symlinks string

// Policies for symbolic links; docs/semantics.md tells them in full.
const (
	SymlinksContain  Symlinks = "contain"  // READLINK is EPERM where the target may leave the mount
	SymlinksRaw      Symlinks = "raw"      // as they are
	SymlinksNoFollow Symlinks = "nofollow" // the mount flag nosymfollow
)

// Options are the settings of an FS.
type Options struct {
	// Path is where the mount is; symbolic links to below it are inside.
	Path     string
	Symlinks Symlinks
	// Squash shows UID and GID as the owner of everything.
	Squash   bool
	UID, GID uint32
	ReadOnly bool
	Log      *slog.Logger
}

// FS is one mounted volume. New makes it, Bind gives it its volume, Serve runs
// it, Close ends it.
type FS struct {
	fuse.RawFileSystem // what is not implemented is ENOSYS

	opts Options
	log  *slog.Logger

	vol    atomic.Pointer[binding]
	kernel atomic.Pointer[kernelNotifier]
	notify *notifyQueue
	keeper chan struct{} // wakes keep

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	nodes     map[uint64]*node
	byIdent   map[identity]*node
	byHandle  map[string]*node
	root      *node
	nextNode  uint64
	files     map[uint64]*file
	dirs      map[uint64]*dirStream
	nextFH    uint64
	epoch     uint64 // counts sessions; handles of older ones are reclaimed
	session   string
	boot      string
	instance  string
	received  uint64        // number of the last event that came
	unknown   uint64        // number of the last event on a handle that no node has
	progress  chan struct{} // closed and replaced when received or epoch moves
	forgets   map[string]uint64
	releasing int     // Release requests on their way
	recent    []*node // told two versions lately, see retellLocked
	pins      []pin
	untold    []string
	dropped   int // untold errors beyond the limit

}

// binding is the volume of the moment.
type binding struct{ Volume }

// kernelNotifier is the part of fuse.Server that tells the kernel to forget.
type kernelNotifier struct {
	inode func(node uint64, off, length int64) fuse.Status
	entry func(parent uint64, name string) fuse.Status
	epoch func() error
}

// New returns an FS without a volume. Its Events and Session methods are the
// callbacks of the volume client that Bind then gets.
func New(o Options) *FS {
	f := &FS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		opts:          o,
		log:           logging.OrDiscard(o.Log),
		nodes:         map[uint64]*node{},
		byIdent:       map[identity]*node{},
		byHandle:      map[string]*node{},
		nextNode:      fuse.FUSE_ROOT_ID,
		files:         map[uint64]*file{},
		dirs:          map[uint64]*dirStream{},
		progress:      make(chan struct{}),
		forgets:       map[string]uint64{},
	}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	f.root = f.newNodeLocked()
	f.root.refs = 1 // the kernel never forgets the root
	f.notify = newNotifyQueue(f)
	f.wg.Go(f.keep)
	return f
}

// Bind makes v the volume of the mount. Again: another connection to the same
// volume, in a session of its own.
func (f *FS) Bind(v Volume) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.startSessionLocked(&binding{v})
}

// String names the file system for go-fuse.
func (f *FS) String() string { return "sbgw" }

// Init takes the server that requests come from; go-fuse calls it after INIT.
func (f *FS) Init(s *fuse.Server) {
	k := &kernelNotifier{inode: s.InodeNotify, entry: s.EntryNotify}
	if old := f.kernel.Load(); old != nil {
		k.epoch = old.epoch
	}
	f.kernel.Store(k)
}

// errDetached is what requests get once the mount is gone for good.
var errDetached = errors.New("mount detached")

// Detach makes every request fail with ESTALE from now on, those in flight too.
func (f *FS) Detach() { f.cancel(errDetached) }

// Close detaches and waits for what runs. Serve must have returned.
func (f *FS) Close() {
	f.Detach()
	f.notify.stop()
	f.wg.Wait()
}

// OpenFiles returns how many files and directories are open.
func (f *FS) OpenFiles() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.files) + len(f.dirs)
}

// Up tells whether the volume answers now.
func (f *FS) Up() bool {
	b := f.vol.Load()
	return b != nil && b.Up()
}
