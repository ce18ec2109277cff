package volume

import (
	"cmp"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// Stat implements workspace.FS.
func (f *volumeFS) Stat(name string) (fs.FileInfo, error) {
	var info fs.FileInfo
	err := f.visit("stat", name, true, func(v *visit) error {
		at, err := v.existing(name, true)
		if err == nil {
			info = infoOf(path.Base(name), at.object)
		}
		return err
	})
	return info, err
}

// Lstat is Stat of a link itself (io/fs.ReadLinkFS).
func (f *volumeFS) Lstat(name string) (fs.FileInfo, error) {
	var info fs.FileInfo
	err := f.visit("lstat", name, true, func(v *visit) error {
		at, err := v.existing(name, false)
		if err == nil {
			info = infoOf(path.Base(name), at.object)
		}
		return err
	})
	return info, err
}

// ReadLink returns where a link points to (io/fs.ReadLinkFS).
func (f *volumeFS) ReadLink(name string) (string, error) {
	target := ""
	err := f.visit("readlink", name, true, func(v *visit) error {
		at, err := v.existing(name, false)
		if err != nil {
			return err
		}
		r, err := v.do(&volumev1.Request{Op: &volumev1.Request_ReadLink{ReadLink: &volumev1.ReadLink{
			Handle: at.object.GetHandle(),
		}}})
		target = string(r.GetData().GetData())
		return err
	})
	return target, err
}

// Open implements workspace.FS.
func (f *volumeFS) Open(name string) (fs.File, error) {
	var out *fsFile
	err := f.visit("open", name, true, func(v *visit) error {
		at, err := v.existing(name, true)
		if err != nil {
			return err
		}
		flags := uint32(0)
		if isDir(at.object) {
			flags = wireDirectory
		}
		r, err := v.do(&volumev1.Request{Op: &volumev1.Request_OpenAt{OpenAt: &volumev1.OpenAt{
			Handle: at.object.GetHandle(), Flags: flags,
		}}})
		if err == nil {
			out = &fsFile{f: f, name: name, id: r.GetOpen().GetOpen(), object: r.GetOpen().GetObject()}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if isDir(out.object) {
		return &fsDir{fsFile: out}, nil
	}
	return out, nil
}

// ReadFile implements workspace.FS.
func (f *volumeFS) ReadFile(name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() // nothing was written
	return io.ReadAll(file)
}

// ReadDir implements workspace.FS; entries come sorted by name.
func (f *volumeFS) ReadDir(name string) ([]fs.DirEntry, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() // nothing was written
	dir, ok := file.(*fsDir)
	if !ok {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: syscall.ENOTDIR}
	}
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, err
}

// fsFile is an open file of a volumeFS.
type fsFile struct {
	f      *volumeFS
	name   string
	id     uint64
	object *volumev1.Object // as it was opened

	mu     sync.Mutex
	offset int64
	closed bool
}

var (
	_ io.ReaderAt    = (*fsFile)(nil)
	_ io.Seeker      = (*fsFile)(nil)
	_ fs.ReadDirFile = (*fsDir)(nil)
)

func (h *fsFile) fail(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &fs.PathError{Op: op, Path: h.name, Err: err}
}

// do carries out a request on the open file.
func (h *fsFile) do(r *volumev1.Request) (*volumev1.Reply, error) {
	v := &visit{f: h.f}
	defer v.end()
	return v.do(r)
}

// Stat implements fs.File.
func (h *fsFile) Stat() (fs.FileInfo, error) {
	r, err := h.do(&volumev1.Request{Op: &volumev1.Request_GetAttr{GetAttr: &volumev1.GetAttr{Open: h.id}}})
	if err != nil {
		return nil, h.fail("stat", err)
	}
	return infoOf(path.Base(h.name), r.GetObject()), nil
}

// Read implements fs.File.
func (h *fsFile) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := h.read(p, h.offset)
	h.offset += int64(n)
	return n, h.fail("read", err)
}

// ReadAt implements io.ReaderAt.
func (h *fsFile) ReadAt(p []byte, at int64) (int, error) {
	if at < 0 {
		return 0, h.fail("read", syscall.EINVAL)
	}
	n := 0
	for n < len(p) {
		m, err := h.read(p[n:], at+int64(n))
		n += m
		if err != nil {
			return n, h.fail("read", err)
		}
	}
	return n, nil
}

// read asks for one piece.
func (h *fsFile) read(p []byte, at int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	limit := h.f.c.Hello().GetLimits().GetMaxPayload()
	r, err := h.do(&volumev1.Request{Op: &volumev1.Request_Read{Read: &volumev1.Read{
		Open: h.id, Offset: uint64(at), Length: uint32(min(len(p), int(limit))),
	}}})
	if err != nil {
		return 0, err
	}
	n := copy(p, r.GetRead().GetData())
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Seek implements io.Seeker.
func (h *fsFile) Seek(offset int64, whence int) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += h.offset
	case io.SeekEnd:
		info, err := h.Stat()
		if err != nil {
			return 0, err
		}
		offset += info.Size()
	default:
		return 0, h.fail("seek", syscall.EINVAL)
	}
	if offset < 0 {
		return 0, h.fail("seek", syscall.EINVAL)
	}
	h.offset = offset
	return offset, nil
}

// Close implements fs.File.
func (h *fsFile) Close() error {
	h.mu.Lock()
	again := h.closed
	h.closed = true
	h.mu.Unlock()
	if again {
		return h.fail("close", fs.ErrClosed)
	}
	_, err := h.do(&volumev1.Request{Op: &volumev1.Request_Release{Release: &volumev1.Release{Opens: []uint64{h.id}}}})
	return h.fail("close", err)
}

// fsDir is an open directory of a volumeFS.
type fsDir struct {
	*fsFile
	entries []fs.DirEntry
	cookie  uint64
	end     bool
}

// Read implements fs.File; a directory has no bytes.
func (d *fsDir) Read([]byte) (int, error) { return 0, d.fail("read", syscall.EISDIR) }

// ReadDir implements fs.ReadDirFile.
func (d *fsDir) ReadDir(n int) ([]fs.DirEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.end && (n <= 0 || len(d.entries) < n) {
		if err := d.fill(); err != nil {
			return nil, d.fail("readdir", err)
		}
	}
	if n > 0 && len(d.entries) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(d.entries) {
		n = len(d.entries)
	}
	out := d.entries[:n:n]
	d.entries = d.entries[n:]
	return out, nil
}

// fill gets one page.
func (d *fsDir) fill() error {
	r, err := d.do(&volumev1.Request{Op: &volumev1.Request_ReadDir{ReadDir: &volumev1.ReadDir{
		Open: d.id, Cookie: d.cookie, MaxBytes: maxDirBytes, Plus: true,
	}}})
	if err != nil {
		return err
	}
	page := r.GetReadDir()
	for _, e := range page.GetEntries() {
		d.cookie = e.GetCookie()
		if e.GetObject() != nil { // gone between listing and looking
			d.entries = append(d.entries, fs.FileInfoToDirEntry(infoOf(string(e.GetName()), e.GetObject())))
		}
	}
	d.end = page.GetEnd() || len(page.GetEntries()) == 0
	return nil
}

// fsInfo is an object as io/fs sees it.
type fsInfo struct {
	name string
	attr *volumev1.Attr
}

func infoOf(name string, o *volumev1.Object) fs.FileInfo { return fsInfo{name, o.GetAttr()} }

func (i fsInfo) Name() string      { return i.name }
func (i fsInfo) Size() int64       { return int64(i.attr.GetSize()) }
func (i fsInfo) Mode() fs.FileMode { return modeOf(i.attr.GetMode()) }
func (i fsInfo) IsDir() bool       { return i.Mode().IsDir() }
func (i fsInfo) Sys() any          { return i.attr }
func (i fsInfo) ModTime() time.Time {
	return time.Unix(i.attr.GetMtime().GetSec(), int64(i.attr.GetMtime().GetNsec()))
}

// modeOf is a Linux mode as io/fs writes it.
func modeOf(mode uint32) fs.FileMode {
	out := fs.FileMode(mode & 0o777)
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		out |= fs.ModeDir
	case syscall.S_IFLNK:
		out |= fs.ModeSymlink
	case syscall.S_IFIFO:
		out |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		out |= fs.ModeSocket
	case syscall.S_IFCHR:
		out |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFBLK:
		out |= fs.ModeDevice
	}
	for bit, m := range map[uint32]fs.FileMode{
		syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky,
	} {
		if mode&bit != 0 {
			out |= m
		}
	}
	return out
}

// wireMode is the reverse of modeOf, of the permission bits.
func wireMode(mode fs.FileMode) uint32 {
	out := uint32(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		out |= syscall.S_ISUID
	}
	if mode&fs.ModeSetgid != 0 {
		out |= syscall.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		out |= syscall.S_ISVTX
	}
	return out
}
