package volume

import (
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// open is an open file or directory of a session.
type open struct {
	id      uint64
	session *session
	object  *object
	file    *file
	access  int // O_RDONLY, O_WRONLY or O_RDWR
	wrote   atomic.Bool

	// mu guards the descriptor's position, which appends, seeks and listings use.
	mu      sync.Mutex
	pending []dirent // read from the kernel, not asked for yet
	next    int64    // the cookie that pending begins after
	started bool
	buf     []byte
}

// addOpen makes an open of a descriptor, which is closed if that fails. The
// caller holds the object.
func (s *session) addOpen(obj *object, fd, access int) (*open, error) {
	h := &open{session: s, object: obj, file: newFile(fd), access: access}
	s.v.mu.Lock()
	obj.opens = append(obj.opens, h)
	obj.users++
	s.v.mu.Unlock()

	s.mu.Lock()
	full := len(s.opens) >= maxOpens
	if !full {
		s.made++
		h.id = s.made
		s.opens[h.id] = h
	}
	s.mu.Unlock()
	if full {
		h.close()
		return nil, syscall.ENFILE
	}
	return h, nil
}

// close ends an open that is in no session's table any more.
func (h *open) close() {
	v := h.session.v
	v.mu.Lock()
	for i, other := range h.object.opens {
		if other == h {
			h.object.opens = append(h.object.opens[:i], h.object.opens[i+1:]...)
			break
		}
	}
	v.mu.Unlock()
	h.file.drop()
	v.release(h.object)
}

// dirent is one entry as the kernel lists it.
type dirent struct {
	name   string
	ino    uint64
	kind   uint32
	cookie int64
}

// list calls f with each entry after a cookie until it returns false, and sets
// end when the directory has no more.
func (h *open) list(cookie int64, f func(dirent) bool, end *bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	if !h.started || cookie == 0 || cookie != h.next {
		if _, err := unix.Seek(h.file.fd, cookie, unix.SEEK_SET); err != nil {
			return err
		}
		h.pending, h.next, h.started = nil, cookie, true
	}
	for {
		for len(h.pending) > 0 {
			d := h.pending[0]
			if !f(d) {
				return nil
			}
			h.pending, h.next = h.pending[1:], d.cookie
		}
		if h.buf == nil {
			h.buf = make([]byte, 32<<10)
		}
		n, err := unix.Getdents(h.file.fd, h.buf)
		if err != nil {
			return err
		}
		if n == 0 {
			*end = true
			return nil
		}
		h.pending = parseDirents(h.buf[:n])
	}
}

// parseDirents reads the structs of getdents64(2).
func parseDirents(b []byte) []dirent {
	var out []dirent
	for len(b) >= direntHeader {
		size := int(binary.NativeEndian.Uint16(b[16:]))
		if size < direntHeader || size > len(b) {
			return out
		}
		name, _, _ := strings.Cut(string(b[direntHeader:size]), "\x00")
		out = append(out, dirent{
			name:   name,
			ino:    binary.NativeEndian.Uint64(b),
			cookie: int64(binary.NativeEndian.Uint64(b[8:])),
			kind:   uint32(b[18]) << 12, // DT_* are the S_IFMT bits
		})
		b = b[size:]
	}
	return out
}
