package fusefs

import (
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// dirStream is an open directory. The kernel asks for a page of memory at a
// time, the server is asked for more, and what is left over waits here, for at
// most cacheTime. The kernel's offsets are 1 after ".", 2 after "..", and n+2
// after n entries, so it may go back to any offset it has seen.
type dirStream struct {
	node *node

	// Guarded by FS.mu.
	open  uint64
	epoch uint64

	mu      sync.Mutex // orders the reads of one stream, over calls to the server
	cookies []uint64   // the server's, after each entry so far
	first   int        // index of the first entry in page
	page    []*volumev1.DirEntry
	plus    bool // page has objects
	answer  answer
	came    time.Time
	end     bool // nothing comes after page
}

const (
	dotEntries  = 2
	dirPageSize = 256 << 10
)

// OpenDir opens a directory at the server, by handle: its entries have checks of
// their own.
func (f *FS) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.status("opendir", f.openDir(f.request(cancel, &in.InHeader, 0), in, out))
}

func (f *FS) openDir(r request, in *fuse.OpenIn, out *fuse.OpenOut) error {
	n, err := f.node(in.NodeId)
	if err != nil {
		return err
	}
	a, err := f.onNode(r, n, true, func() (*volumev1.Request, error) {
		h, err := f.handle(r, n)
		return &volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: &volumev1.OpenAt{
			Handle: h, Flags: syscall.O_RDONLY | syscall.O_DIRECTORY}}}, err
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noteLocked(a.GetOpen().GetObject(), a)
	n.opens++
	f.nextFH++
	f.dirs[f.nextFH] = &dirStream{node: n, open: a.GetOpen().GetOpen(), epoch: a.epoch}
	out.Fh = f.nextFH
	return nil
}

// dir returns an open directory with the server's number of it.
func (f *FS) dir(r request, fh uint64) (*dirStream, uint64, error) {
	f.mu.Lock()
	d := f.dirs[fh]
	if d == nil {
		f.mu.Unlock()
		return nil, 0, syscall.EBADF
	}
	open, current := d.open, d.epoch == f.epoch
	f.mu.Unlock()
	if current {
		return d, open, nil
	}
	open, epoch, err := f.reopen(r, d.node, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return nil, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d.open, d.epoch = open, epoch
	return d, open, nil
}

// ReadDir lists names and types.
func (f *FS) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.status("readdir", f.readDir(f.request(cancel, &in.InHeader, 0), in, out, false))
}

// ReadDirPlus lists names with attributes, each of which counts as a lookup.
func (f *FS) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.status("readdirplus", f.readDir(f.request(cancel, &in.InHeader, 0), in, out, true))
}

func (f *FS) readDir(r request, in *fuse.ReadIn, out *fuse.DirEntryList, plus bool) error {
	d, _, err := f.dir(r, in.Fh)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if in.Offset == 0 {
		f.rewind(d)
	}
	off := in.Offset
	for off < dotEntries {
		if !f.addDot(d, out, off, plus) {
			return nil
		}
		off++
	}
	for i := int(off - dotEntries); ; i++ {
		e, err := f.entryAt(r, in.Fh, d, i, plus)
		if e == nil && i > int(off-dotEntries) {
			return nil // an error comes with the next call, at the same place
		}
		if e == nil {
			return err
		}
		if !f.addEntry(d, out, e, uint64(i)+dotEntries+1, plus) {
			return nil
		}
	}
}

// addDot adds "." or "..", which no object is told with.
func (f *FS) addDot(d *dirStream, out *fuse.DirEntryList, off uint64, plus bool) bool {
	f.mu.Lock()
	n := d.node
	e := fuse.DirEntry{Mode: syscall.S_IFDIR, Name: ".", Ino: n.attr.GetIno(), Off: off + 1}
	if off == 1 {
		e.Name = ".."
		if al, ok := n.aliasLocked(); ok {
			e.Ino = al.parent.attr.GetIno()
		}
	}
	f.mu.Unlock()
	if plus {
		return out.AddDirLookupEntry(e) != nil
	}
	return out.AddDirEntry(e)
}

func (f *FS) addEntry(d *dirStream, out *fuse.DirEntryList, e *volumev1.DirEntry, off uint64, plus bool) bool {
	de := fuse.DirEntry{Mode: e.GetType(), Name: string(e.GetName()), Ino: e.GetIno(), Off: off}
	if !plus {
		return out.AddDirEntry(de)
	}
	entry := out.AddDirLookupEntry(de)
	if entry == nil {
		return false
	}
	if o := e.GetObject(); o != nil {
		f.mu.Lock()
		f.entryLocked(d.node, de.Name, o, d.answer, entry)
		f.mu.Unlock()
		e.Object = nil // its reference is used up
	}
	return true
}

// entryAt returns the entry of an index, nil at the end.
func (f *FS) entryAt(r request, fh uint64, d *dirStream, i int, plus bool) (*volumev1.DirEntry, error) {
	fresh := time.Since(d.came) < cacheTime && d.answer.epoch == f.currentEpoch()
	if at := i - d.first; fresh && at >= 0 && at < len(d.page) {
		if e := d.page[at]; !plus || e.GetObject() != nil || !d.plus {
			return e, nil
		}
	} else if fresh && d.end && at == len(d.page) {
		return nil, nil
	}
	if i > len(d.cookies) {
		return nil, nil // an offset that the kernel never had from this stream
	}
	if err := f.fetch(r, fh, d, i, plus); err != nil {
		return nil, err
	}
	if len(d.page) == 0 {
		return nil, nil
	}
	return d.page[0], nil
}

// fetch brings the entries from an index on.
func (f *FS) fetch(r request, fh uint64, d *dirStream, i int, plus bool) error {
	var cookie uint64
	if i > 0 {
		cookie = d.cookies[i-1]
	}
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		_, open, err := f.dir(r, fh)
		return &volumev1.Request{Op: &volumev1.Request_ReadDir{ReadDir: &volumev1.ReadDir{
			Open: open, Cookie: cookie, MaxBytes: dirPageSize, Plus: plus}}}, err
	})
	if err != nil {
		return err
	}
	f.dropPage(d)
	d.cookies = d.cookies[:i]
	for _, e := range a.GetReadDir().GetEntries() {
		if checkName(string(e.GetName())) != nil {
			if e.GetObject() != nil {
				f.mu.Lock()
				f.giveBackLocked(e.GetObject())
				f.mu.Unlock()
			}
			continue
		}
		d.page = append(d.page, e)
		d.cookies = append(d.cookies, e.GetCookie())
	}
	d.first, d.plus, d.answer, d.came = i, plus, a, time.Now()
	d.end = a.GetReadDir().GetEnd()
	return nil
}

// dropPage gives back what the kernel was not told of a page.
func (f *FS) dropPage(d *dirStream) {
	f.mu.Lock()
	for _, e := range d.page {
		if o := e.GetObject(); o != nil && d.answer.epoch == f.epoch {
			f.giveBackLocked(o)
		}
	}
	f.mu.Unlock()
	d.page = nil
}

func (f *FS) rewind(d *dirStream) {
	f.dropPage(d)
	d.cookies, d.first, d.end, d.came = nil, 0, false, time.Time{}
}

// ReleaseDir gives an open directory back.
func (f *FS) ReleaseDir(in *fuse.ReleaseIn) {
	f.mu.Lock()
	d := f.dirs[in.Fh]
	if d == nil {
		f.mu.Unlock()
		return
	}
	delete(f.dirs, in.Fh)
	d.node.opens--
	f.dropLocked(d.node)
	current := d.epoch == f.epoch
	f.mu.Unlock()
	d.mu.Lock()
	f.dropPage(d)
	d.mu.Unlock()
	if current {
		f.release(d.open)
	}
}

// FsyncDir makes the directory's names durable.
func (f *FS) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	r := f.request(cancel, &in.InHeader, 0)
	a, err := f.op(r, true, func() (*volumev1.Request, error) {
		_, open, err := f.dir(r, in.Fh)
		return &volumev1.Request{Op: &volumev1.Request_Commit{Commit: &volumev1.Commit{
			Open: open, Kind: volumev1.CommitKind_COMMIT_KIND_SYNC}}}, err
	})
	if err == nil {
		f.note(a)
	}
	return f.status("fsyncdir", err)
}
