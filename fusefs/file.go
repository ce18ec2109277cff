package fusefs

import (
	"errors"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// file is an open file. Its fields are guarded by FS.mu, but for node and flags.
type file struct {
	node  *node
	flags uint32 // for the server

	open    uint64 // at the server, in the session of epoch
	epoch   uint64
	flushed time.Time // FLUSH came after a write: RELEASE may be next
	locked  bool      // took a lock in its life
	broken  bool      // a lock went with the server: every use is EIO until closed
}

// serverFlags are the open flags that mean something at the server. Appends are
// marked at each write, as fcntl(2) may switch that; O_SYNC likewise; the rest is
// the kernel's.
func serverFlags(flags uint32) uint32 {
	return flags & (syscall.O_ACCMODE | syscall.O_TRUNC)
}

// Open checks at the server that the name the file was found by still means it,
// if not with ESTALE: the kernel then walks the path again. What the kernel
// caches of the file it may keep only if the version is the one it knows.
func (f *FS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.status("open", f.open(f.request(cancel, &in.InHeader, 0), in, out))
}

func (f *FS) open(r request, in *fuse.OpenIn, out *fuse.OpenOut) error {
	n, err := f.node(in.NodeId)
	if err != nil {
		return err
	}
	al, named := f.openAlias(n)
	flags := serverFlags(in.Flags)
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		q := &volumev1.OpenAt{Flags: flags}
		var err error
		if q.Handle, err = f.handle(r, n); err != nil {
			return nil, err
		}
		if named {
			if q.Parent, err = f.handle(r, al.parent); err != nil {
				return nil, err
			}
			q.Name = []byte(al.name)
		}
		return &volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: q}}, nil
	})
	if err != nil {
		return f.openFailed(n, al, named, err)
	}
	return f.opened(n, flags, a, out)
}

// openAlias returns the name that OPEN is to check, and keeps n for the open.
func (f *FS) openAlias(n *node) (alias, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.opens++
	if time.Now().Before(n.byHandle) {
		return alias{}, false
	}
	return n.aliasLocked()
}

func (f *FS) openFailed(n *node, al alias, named bool, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.opens--
	if errors.Is(err, syscall.ESTALE) || named && errors.Is(err, syscall.ENOENT) {
		f.markStaleLocked(n)
		if named && al.parent.children[al.name] == n {
			f.unnameLocked(al.parent, al.name)
		}
		err = syscall.ESTALE
	}
	f.dropLocked(n)
	return err
}

// opened records an open that the server granted for n, whose opens count it
// already.
func (f *FS) opened(n *node, flags uint32, a answer, out *fuse.OpenOut) error {
	res := a.GetOpen()
	o := res.GetObject()
	version := string(o.GetVersion())

	f.mu.Lock()
	if identityOf(o) != n.ident {
		n.opens--
		f.noteLocked(o, a)
		f.dropLocked(n)
		f.mu.Unlock()
		f.release(res.GetOpen())
		return syscall.ESTALE
	}
	f.creditLocked(n, o, a)
	f.learnLocked(n, o)
	sound := version != "" && !o.GetRacy() && a.GetEvent() >= n.seen
	keep := sound && n.pages == version
	changed := n.told != version
	n.pages = ""
	if sound {
		n.pages = version
	}
	n.used = true
	fl := &file{node: n, flags: flags &^ syscall.O_TRUNC, open: res.GetOpen(), epoch: a.epoch}
	f.nextFH++
	fh := f.nextFH
	f.files[fh] = fl
	f.mu.Unlock()

	if changed {
		// Attributes only: this never waits for a lock that our caller may hold.
		// Without it a file that grew would be read to its old end.
		f.notifyInode(n.id, -1, 0)
	}
	out.Fh = fh
	if keep {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	}
	return nil
}

// Create makes a file and opens it. Where the name was there already, the kernel
// is sent to look again: it has checked the rights to make a file only.
func (f *FS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return f.status("create", f.create(f.request(cancel, &in.InHeader, in.Umask), in, name, out))
}

func (f *FS) create(r request, in *fuse.CreateIn, name string, out *fuse.CreateOut) error {
	parent, err := f.node(in.NodeId)
	if err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	flags := serverFlags(in.Flags)&^syscall.O_TRUNC | in.Flags&syscall.O_EXCL | syscall.O_CREAT
	a, err := f.op(r, false, func() (*volumev1.Request, error) {
		h, err := f.handle(r, parent)
		return &volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: &volumev1.OpenAt{
			Parent: h, Name: []byte(name), Flags: flags, Mode: in.Mode}}}, err
	})
	if errors.Is(err, syscall.ELOOP) {
		return syscall.ESTALE // a symbolic link came there just now
	}
	if err != nil {
		return err
	}
	res := a.GetOpen()
	f.mu.Lock()
	f.noteLocked(res.GetParent(), a)
	if !res.GetCreated() {
		f.noteLocked(res.GetObject(), a)
		f.mu.Unlock()
		f.release(res.GetOpen())
		return syscall.ESTALE
	}
	n := f.createdLocked(parent, name, a, out)
	f.mu.Unlock()
	return f.opened(n, serverFlags(in.Flags), a, &out.OpenOut)
}

// createdLocked tells the kernel of a file just made, with an open still to be
// recorded. The reference in a is counted by opened.
func (f *FS) createdLocked(parent *node, name string, a answer, out *fuse.CreateOut) *node {
	o := a.GetOpen().GetObject()
	n := f.entryLocked(parent, name, o, a, &out.EntryOut)
	if n != f.root && n.epoch == a.epoch {
		n.srvRefs--
	}
	n.opens++
	return n
}

// Tmpfile makes a file without a name (O_TMPFILE).
func (f *FS) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return f.status("tmpfile", f.tmpfile(f.request(cancel, &in.InHeader, in.Umask), in, out))
}

func (f *FS) tmpfile(r request, in *fuse.CreateIn, out *fuse.CreateOut) error {
	parent, err := f.node(in.NodeId)
	if err != nil {
		return err
	}
	flags := serverFlags(in.Flags)&^syscall.O_TRUNC | in.Flags&syscall.O_EXCL | unix.O_TMPFILE
	a, err := f.op(r, false, func() (*volumev1.Request, error) {
		h, err := f.handle(r, parent)
		return &volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: &volumev1.OpenAt{
			Parent: h, Flags: flags, Mode: in.Mode, Tmpfile: true}}}, err
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.noteLocked(a.GetOpen().GetParent(), a)
	n := f.createdLocked(nil, "", a, out)
	f.mu.Unlock()
	return f.opened(n, serverFlags(in.Flags), a, &out.OpenOut)
}

// file returns an open file by the kernel's number with the server's number of
// it, which is reclaimed first if it is of an older session.
func (f *FS) file(r request, fh uint64) (*file, uint64, error) {
	f.mu.Lock()
	fl := f.files[fh]
	if fl == nil {
		f.mu.Unlock()
		return nil, 0, syscall.EBADF
	}
	broken, open, current := fl.broken, fl.open, fl.epoch == f.epoch
	f.mu.Unlock()
	if broken {
		return nil, 0, syscall.EIO
	}
	if current {
		return fl, open, nil
	}
	open, epoch, err := f.reopen(r, fl.node, fl.flags)
	if err != nil {
		return nil, 0, err
	}
	f.mu.Lock()
	if fl.epoch != epoch {
		fl.open, fl.epoch = open, epoch
		f.mu.Unlock()
		return fl, open, nil
	}
	extra := open // somebody else was faster
	open = fl.open
	f.mu.Unlock()
	f.release(extra)
	return fl, open, nil
}

// handleOrOpen names n by an open file where the request has one, else by handle.
func (f *FS) handleOrOpen(r request, n *node, fh uint64) ([]byte, uint64, error) {
	f.mu.Lock()
	isFile := f.files[fh] != nil
	f.mu.Unlock()
	if isFile {
		_, open, err := f.file(r, fh)
		return nil, open, err
	}
	h, err := f.handle(r, n)
	return h, 0, err
}

// Release gives an open back.
func (f *FS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	f.mu.Lock()
	fl := f.files[in.Fh]
	if fl == nil {
		f.mu.Unlock()
		return
	}
	delete(f.files, in.Fh)
	fl.node.opens--
	f.dropLocked(fl.node)
	current := fl.epoch == f.epoch
	f.mu.Unlock()
	if current {
		f.release(fl.open)
	}
}
