package volume

import (
	"container/list"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	volumev1 "github.com/yaoapp/sbgw/proto/sbgw/volume/v1"
)

// identity tells an object from every other that has or had its inode number.
type identity struct {
	dev, ino uint64
	// gen is a hash of the kernel's file handle, which has the inode's generation;
	// 0 where the file system makes none.
	gen   uint64
	btime int64
}

// handle is an object's name on the wire. It can't be guessed.
type handle [16]byte

// newHandle has a running number for uniqueness beside the random half.
func newHandle(n uint64) handle {
	var h handle
	binary.BigEndian.PutUint64(h[:8], n)
	binary.BigEndian.PutUint64(h[8:], rand.Uint64())
	return h
}

// object is what handles stand for. It is found again by the kernel's file
// handle, which pins nothing, or else by an O_PATH descriptor.
type object struct {
	id     identity
	handle handle
	kind   uint32 // S_IFMT bits
	fh     *unix.FileHandle

	// Guarded by volume.mu.

	anchor *file   // where fh is nil; nil when the object is gone
	opens  []*open // of all sessions
	// users is one per session with references, per open, per running op, and
	// one for the root.
	users    int
	parent   *object // of the name it was last found under
	name     string
	children map[string]*object
	version  version // newest that the feed has told
	content  content // at that version
	// origin got version in a reply, but no event of it yet.
	origin *session
	given  time.Time // last time its attributes went out
	recent *list.Element
	// watched is guarded by watcher.mu.
	watched *watch
}

func (o *object) isDir() bool { return o.kind == unix.S_IFDIR }

// version changes with attributes or content: the change time, then a hash of
// all that is not access time.
type version [16]byte

// racyWindow is longer than a tick of any kernel clock: two changes within one
// may have the same time stamps.
const racyWindow = 20 * time.Millisecond

func versionOf(st *unix.Statx_t) version {
	var v version
	binary.BigEndian.PutUint64(v[:8], uint64(st.Ctime.Sec)*1e9+uint64(st.Ctime.Nsec))
	h := fnv.New64a()
	var b [8]byte
	for _, n := range [...]uint64{
		uint64(st.Mtime.Sec), uint64(st.Mtime.Nsec), st.Size, st.Ino,
		uint64(st.Mode)<<32 | uint64(st.Nlink), uint64(st.Uid)<<32 | uint64(st.Gid),
	} {
		binary.LittleEndian.PutUint64(b[:], n)
		h.Write(b[:])
	}
	binary.BigEndian.PutUint64(v[8:], h.Sum64())
	return v
}

// content is what changes with an object's content, if not within a tick.
type content struct {
	size  uint64
	mtime unix.StatxTimestamp
}

func contentOf(st *unix.Statx_t) content { return content{st.Size, st.Mtime} }

func (c content) racy(now time.Time) bool {
	return now.Sub(time.Unix(c.mtime.Sec, int64(c.mtime.Nsec))) < racyWindow
}

func racy(st *unix.Statx_t, now time.Time) bool {
	return now.Sub(time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec))) < racyWindow
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// statFD asks what a descriptor of any kind refers to.
func statFD(fd int) (*unix.Statx_t, error) {
	st := new(unix.Statx_t)
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, statMask, st); err != nil {
		return nil, err
	}
	return st, nil
}

func devOf(st *unix.Statx_t) uint64 { return unix.Mkdev(st.Dev_major, st.Dev_minor) }

// maxHandleSize is MAX_HANDLE_SZ of name_to_handle_at(2).
const maxHandleSize = 128

// fileHandle returns the kernel's handle of a descriptor. The wrapper in x/sys
// makes two system calls where one does.
func fileHandle(fd int) (unix.FileHandle, error) {
	var h struct {
		size uint32
		kind int32
		data [maxHandleSize]byte
	}
	h.size = maxHandleSize
	var mount int32
	empty := [1]byte{}
	_, _, errno := unix.Syscall6(unix.SYS_NAME_TO_HANDLE_AT, uintptr(fd),
		uintptr(unsafe.Pointer(&empty[0])), uintptr(unsafe.Pointer(&h)),
		uintptr(unsafe.Pointer(&mount)), unix.AT_EMPTY_PATH, 0)
	if errno != 0 {
		return unix.FileHandle{}, errno
	}
	if h.size > maxHandleSize {
		return unix.FileHandle{}, syscall.EOVERFLOW
	}
	return unix.NewFileHandle(h.kind, h.data[:h.size]), nil
}

// identify returns the identity of what fd refers to, and its file handle if the
// volume can open by one.
func (v *volume) identify(fd int, st *unix.Statx_t) (identity, *unix.FileHandle) {
	id := identity{dev: devOf(st), ino: st.Ino, btime: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)}
	if !v.byHandle || id.dev != v.dev {
		return id, nil
	}
	fh, err := fileHandle(fd)
	if err != nil {
		return id, nil
	}
	h := fnv.New64a()
	h.Write(fh.Bytes())
	id.gen = h.Sum64()
	return id, &fh
}

func (id identity) message() *volumev1.Identity {
	return &volumev1.Identity{Dev: id.dev, Ino: id.ino, Generation: id.gen, Btime: timeMessage(id.btime/1e9, uint32(id.btime%1e9))}
}

func identityOf(m *volumev1.Identity) identity {
	return identity{
		dev: m.GetDev(), ino: m.GetIno(), gen: m.GetGeneration(),
		btime: m.GetBtime().GetSec()*1e9 + int64(m.GetBtime().GetNsec()),
	}
}

func timeMessage(sec int64, nsec uint32) *volumev1.Time { return &volumev1.Time{Sec: sec, Nsec: nsec} }

func attrMessage(st *unix.Statx_t) *volumev1.Attr {
	return &volumev1.Attr{
		Ino: st.Ino, Size: st.Size, Blocks: st.Blocks, Blksize: st.Blksize,
		Mode: uint32(st.Mode), Nlink: st.Nlink, Uid: st.Uid, Gid: st.Gid,
		Rdev:  unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		Atime: timeMessage(st.Atime.Sec, st.Atime.Nsec),
		Mtime: timeMessage(st.Mtime.Sec, st.Mtime.Nsec),
		Ctime: timeMessage(st.Ctime.Sec, st.Ctime.Nsec),
		Btime: timeMessage(st.Btime.Sec, st.Btime.Nsec),
	}
}
