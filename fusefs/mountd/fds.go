package mountd

import (
	"fmt"
	"net"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Descriptors go over a packet socket, one message each: "keep <workspace>" with
// a duplicate of the mount's FUSE descriptor, and "drop <workspace>" when the
// mount is gone. Who connects gets all there are, then what changes.
const (
	verbKeep = "keep"
	verbDrop = "drop"
)

// fdServer hands the descriptors of the mounts out.
type fdServer struct {
	mu     sync.Mutex
	fds    map[string]int
	conns  map[*net.UnixConn]struct{}
	closed bool
	wg     sync.WaitGroup
}

func newFDServer() *fdServer {
	return &fdServer{fds: map[string]int{}, conns: map[*net.UnixConn]struct{}{}}
}

func (s *fdServer) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.add(c.(*net.UnixConn))
	}
}

func (s *fdServer) add(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return
	}
	s.conns[c] = struct{}{}
	for w, fd := range s.fds {
		s.sendLocked(c, verbKeep, w, fd)
	}
	s.wg.Go(func() { s.watch(c) })
}

// watch ends a connection that its peer has closed; nothing else comes from it.
func (s *fdServer) watch(c *net.UnixConn) {
	_, _ = c.Read(make([]byte, 1))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	_ = c.Close()
}

// keep adds a mount. The descriptor is the server's from now on.
func (s *fdServer) keep(workspace string, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fds[workspace] = fd
	for c := range s.conns {
		s.sendLocked(c, verbKeep, workspace, fd)
	}
}

// drop removes a mount and closes its descriptor.
func (s *fdServer) drop(workspace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, ok := s.fds[workspace]
	if !ok {
		return
	}
	delete(s.fds, workspace)
	for c := range s.conns {
		s.sendLocked(c, verbDrop, workspace, -1)
	}
	_ = unix.Close(fd)
}

// sendLocked does not wait: a peer that reads nothing is cut off, and gets
// everything again when it comes back.
func (s *fdServer) sendLocked(c *net.UnixConn, verb, workspace string, fd int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	var serr error
	err = raw.Control(func(sock uintptr) {
		serr = unix.Sendmsg(int(sock), []byte(verb+" "+workspace), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if err != nil || serr != nil {
		_ = c.CloseRead() // watch sees the end and closes
		_ = c.CloseWrite()
	}
}

func (s *fdServer) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	for w, fd := range s.fds {
		_ = unix.Close(fd)
		delete(s.fds, w)
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// keeper is the client's side: it holds duplicates until it is told to drop them
// or the mount process is gone. With that process dead, the last duplicates would
// keep every caller waiting for ever.
type keeper struct {
	conn *net.UnixConn
	gone chan struct{}

	mu  sync.Mutex
	fds map[string]int
}

func newKeeper(socket string) (*keeper, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("connect for descriptors: %w", err)
	}
	k := &keeper{conn: c, gone: make(chan struct{}), fds: map[string]int{}}
	go k.run()
	return k, nil
}

func (k *keeper) run() {
	defer close(k.gone)
	defer k.closeAll()
	buf, oob := make([]byte, 1024), make([]byte, unix.CmsgSpace(4*4))
	for {
		n, oobn, _, _, err := k.conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		fds, _ := parseRights(oob[:oobn])
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
		verb, workspace, _ := strings.Cut(string(buf[:n]), " ")
		switch {
		case verb == verbKeep && len(fds) == 1:
			k.set(workspace, fds[0])
		case verb == verbDrop:
			k.set(workspace, -1)
		default:
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}
	}
}

func (k *keeper) set(workspace string, fd int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old, ok := k.fds[workspace]; ok {
		_ = unix.Close(old)
		delete(k.fds, workspace)
	}
	if fd >= 0 {
		k.fds[workspace] = fd
	}
}

func (k *keeper) closeAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for w, fd := range k.fds {
		_ = unix.Close(fd)
		delete(k.fds, w)
	}
}

func (k *keeper) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.fds)
}

func (k *keeper) close() {
	_ = k.conn.Close()
	<-k.gone
}
