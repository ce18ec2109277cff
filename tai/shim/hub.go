package shim

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/internal/logging"
)

// hub holds the box's status and wakes those who follow it. A follower that is
// slow sees the newest status only.
type hub struct {
	mu      sync.Mutex
	status  Status
	changed chan struct{} // closed and replaced on each change
	closed  bool
}

func newHub() *hub { return &hub{changed: make(chan struct{})} }

func (h *hub) update(f func(*Status)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.status)
	h.wakeLocked()
}

// close lets followers go that have the last status.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.wakeLocked()
}

func (h *hub) wakeLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) get() (Status, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status, h.changed
}

// listeners are the box's two sockets.
type listeners struct{ ctl, exec *net.UnixListener }

func (l listeners) Close() error {
	return errors.Join(l.ctl.Close(), l.exec.Close())
}

// listen opens the sockets, by names relative to the working directory: a socket's
// path is limited to 107 bytes (unix(7)).
func (s *shim) listen() (l listeners, err error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	l.ctl, err = net.ListenUnix("unix", &net.UnixAddr{Name: ctlSocket, Net: "unix"})
	if err != nil {
		return l, err
	}
	l.exec, err = net.ListenUnix("unix", &net.UnixAddr{Name: execSocket, Net: "unix"})
	if err != nil {
		l.ctl.Close()
		return l, err
	}
	// A later shim of the same box may have the names by then.
	l.ctl.SetUnlinkOnClose(false)
	l.exec.SetUnlinkOnClose(false)
	return l, nil
}

// serve hands each connection to a goroutine until the listener is closed.
func (s *shim) serve(l *net.UnixListener, handle func(*net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warn("accept", logging.Err, err)
			time.Sleep(100 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		if !Trusted(conn) {
			conn.Close()
			continue
		}
		go handle(conn)
	}
}

// Trusted tells whether the peer of a unix socket is root or the user of this
// process.
func Trusted(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return err == nil && cerr == nil && (cred.Uid == 0 || int(cred.Uid) == os.Getuid())
}

// serveControl sends the status on each change until the last one, and obeys.
func (s *shim) serveControl(conn *net.UnixConn) {
	defer conn.Close()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		commands := json.NewDecoder(conn)
		for {
			var c command
			if commands.Decode(&c) != nil {
				return
			}
			if c.Stop {
				go s.stop(c.Grace)
			}
		}
	}()
	out := json.NewEncoder(conn)
	for {
		status, changed := s.hub.get()
		if out.Encode(status) != nil || status.Exit != nil {
			return
		}
		select {
		case <-changed:
		case <-gone:
			return
		}
	}
}
