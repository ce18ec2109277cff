package volume

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// maxHandles bounds the objects that a volume's sessions know.
const maxHandles = 1 << 20

// recentFor is how long attributes that went out may be in use unwatched: longer
// than any kernel keeps them (DESIGN: at most one second).
const recentFor = 3 * time.Second

// volume is a directory tree that has sessions.
type volume struct {
	name     string
	log      *slog.Logger
	dir      *file // the root, opened for reading: file handles need that
	dev      uint64
	root     *object
	instance string
	// byHandle: the process may open objects of the root's file system by handle.
	byHandle bool
	feed     *feed
	watch    *watcher

	mu       sync.Mutex
	handles  map[handle]*object
	ids      map[identity]*object
	made     uint64
	sessions map[*session]struct{}
	recent   *list.List // of *object, newest first
	closed   bool
}

// openVolume opens the tree at a directory. It has to be started or dropped.
func openVolume(name, dir string, log *slog.Logger) (*volume, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open volume %q: %w", name, err)
	}
	v := &volume{
		name: name, log: log, dir: newFile(fd),
		handles: map[handle]*object{}, ids: map[identity]*object{},
		sessions: map[*session]struct{}{}, recent: list.New(),
	}
	st, err := statFD(fd)
	if err != nil {
		v.dir.drop()
		return nil, fmt.Errorf("stat volume %q: %w", name, err)
	}
	v.dev = devOf(st)
	v.byHandle = canOpenByHandle(fd)
	id, _ := v.identify(fd, st)
	v.root = &object{id: id, kind: unix.S_IFDIR, anchor: v.dir, users: 1}
	v.insertLocked(v.root)
	v.instance = instanceOf(id)
	return v, nil
}

// start begins to watch; events have numbers after last.
func (v *volume) start(last uint64, o ServerOptions) {
	v.feed = newFeed(last)
	v.watch = newWatcher(v, o)
}

// canOpenByHandle tries it: it takes CAP_DAC_READ_SEARCH and a file system that
// can be exported, which overlayfs mostly can't.
func canOpenByHandle(dir int) bool {
	fh, err := fileHandle(dir)
	if err != nil {
		return false
	}
	fd, err := unix.OpenByHandleAt(dir, fh, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

func instanceOf(id identity) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%d:%d:%d", id.dev, id.ino, id.gen, id.btime))
	return hex.EncodeToString(sum[:8])
}

// close lets go of everything. No session may be left.
func (v *volume) close() {
	v.watch.close()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.handles {
		if o.anchor != nil {
			o.anchor.drop()
			o.anchor = nil
		}
	}
}

func (v *volume) insertLocked(o *object) {
	v.made++
	o.handle = newHandle(v.made)
	v.handles[o.handle] = o
	v.ids[o.id] = o
}

// intern returns the object that f, of status st, is open on, held for the
// caller until release, and whether it is new in the table: its status may then
// have changed without an event, and has to be asked again.
func (v *volume) intern(f *file, st *unix.Statx_t, parent *object, name string) (o *object, added bool, err error) {
	id, fh := v.identify(f.fd, st)
	v.mu.Lock()
	defer v.mu.Unlock()

	o = v.ids[id]
	if o == nil {
		if len(v.handles) >= maxHandles {
			return nil, false, syscall.ENFILE
		}
		o = &object{id: id, kind: uint32(st.Mode) & unix.S_IFMT, fh: fh}
		if fh == nil {
			o.anchor = f.hold()
		}
		v.insertLocked(o)
		added = true
	}
	o.users++
	if parent != nil && o != v.root {
		o.nameLocked(parent, name)
	}
	return o, added, nil
}

// nameLocked remembers under which name an object was found.
func (o *object) nameLocked(parent *object, name string) {
	if o.parent == parent && o.name == name && parent.children[name] == o {
		return
	}
	o.unnameLocked()
	if old := parent.children[name]; old != nil {
		old.unnameLocked()
	}
	if parent.children == nil {
		parent.children = map[string]*object{}
	}
	parent.children[name] = o
	o.parent, o.name = parent, name
}

func (o *object) unnameLocked() {
	if o.parent != nil && o.parent.children[o.name] == o {
		delete(o.parent.children, o.name)
	}
	o.parent, o.name = nil, ""
}

// release gives back what intern, find and open hold.
func (v *volume) release(o *object) {
	v.mu.Lock()
	gone := v.unuseLocked(o)
	v.mu.Unlock()
	if gone {
		v.watch.forget(o)
	}
}

// unuseLocked reports whether the object left the table; the caller then has the
// watcher forget it.
func (v *volume) unuseLocked(o *object) bool {
	o.users--
	if o.users > 0 {
		return false
	}
	delete(v.handles, o.handle)
	if v.ids[o.id] == o {
		delete(v.ids, o.id)
	}
	o.unnameLocked()
	for _, c := range o.children {
		c.parent, c.name = nil, ""
	}
	o.children = nil
	if o.recent != nil {
		v.recent.Remove(o.recent)
		o.recent = nil
	}
	if o.anchor != nil {
		o.anchor.drop()
		o.anchor = nil
	}
	return true
}

// known returns the object with an identity, held, or nil.
func (v *volume) known(f *file, st *unix.Statx_t) *object {
	id, _ := v.identify(f.fd, st)
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.ids[id]
	if o != nil {
		o.users++
	}
	return o
}

// pin returns a descriptor of the object, for the caller to drop: of an open
// file if there is one, since that also reaches a deleted file, else an O_PATH
// one. ESTALE: the object is gone.
func (v *volume) pin(o *object) (*file, error) {
	v.mu.Lock()
	fh := o.fh
	var f *file
	switch {
	case len(o.opens) > 0:
		f = o.opens[0].file.hold()
	case o.anchor != nil:
		f = o.anchor.hold()
	}
	v.mu.Unlock()

	if f != nil {
		return f, nil
	}
	if fh == nil {
		return nil, syscall.ESTALE
	}
	fd, err := unix.OpenByHandleAt(v.dir.fd, *fh, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return nil, syscall.ESTALE
	}
	return newFile(fd), nil
}

// buried tells the table that an object without links was seen: one that nobody
// has open is gone, and its descriptor would only hold its space.
func (v *volume) buried(o *object) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(o.opens) > 0 || o == v.root {
		return false
	}
	if v.ids[o.id] == o {
		delete(v.ids, o.id)
	}
	if o.anchor != nil {
		o.anchor.drop()
		o.anchor = nil
	}
	o.fh = nil
	return true
}

// observe records the status st of an object that goes out to session s, or, with
// s nil, that the watcher saw, and tells the feed of a version that is new.
func (v *volume) observe(o *object, st *unix.Statx_t, s *session) version {
	now := versionOf(st)
	content := contentOf(st)
	v.mu.Lock()
	defer v.mu.Unlock()

	e := event{object: o, version: now, attrOnly: content == o.content && !content.racy(time.Now())}
	o.content = content
	switch {
	case o.version == now && (s != nil || o.origin == nil):
		// Told already.
	case s == nil && o.version == now:
		e.only = o.origin // the others were told when it went out
		o.origin = nil
		v.feed.append(e)
	case s == nil:
		o.version, o.origin = now, nil
		v.feed.append(e)
	default:
		if o.version != (version{}) && len(v.sessions) > 1 {
			e.except = s
			v.feed.append(e)
		}
		o.version, o.origin = now, s
	}
	if s != nil {
		o.given = time.Now()
		if o.recent == nil {
			o.recent = v.recent.PushFront(o)
		} else {
			v.recent.MoveToFront(o.recent)
		}
	}
	return now
}

// statfs returns the numbers of the file system.
func (v *volume) statfs() (*volumev1.StatFsResult, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(v.dir.fd, &st); err != nil {
		return nil, err
	}
	return &volumev1.StatFsResult{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Files: st.Files, Ffree: st.Ffree,
		Bsize: uint32(st.Bsize), Namelen: uint32(st.Namelen), Frsize: uint32(st.Frsize),
	}, nil
}
