package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/grpcerr"
)

// probeTimeout bounds the question whether somebody answers on a socket.
const probeTimeout = 2 * time.Second

// listen opens the API's socket at path, which only root, the gateway's user or,
// if it is not negative, user sudo may open. A socket that nobody answers on is
// replaced.
func listen(path string, sudo int) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, refused("make directory of the API's socket", "gateway.listen", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// bind(2) gives the file the mode that the socket has before it.
	closed := func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(cerr, err)
	}
	lc := net.ListenConfig{Control: closed}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, refused("listen on "+path, "gateway.listen", err)
	}
	if sudo >= 0 {
		if err := os.Chown(path, sudo, -1); err != nil {
			l.Close()
			return nil, fmt.Errorf("give the API's socket to user %d: %w", sudo, err)
		}
	}
	return l, nil
}

// removeStale removes a socket that was left behind. One that somebody answers on,
// and anything that is no socket, is an error.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return refused("look at "+path, "gateway.listen", err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("listen on %s: %w: the file there is not a socket; remove it or set gateway.listen", path, core.ErrConflict)
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	if err == nil {
		defer conn.Close()
		return fmt.Errorf("listen on %s: %w: in use by another gateway, pid %s; stop that one or set gateway.listen", path, core.ErrConflict, listenerPID(conn))
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return refused("ask whether "+path+" is in use", "gateway.listen", err)
	}
	return os.Remove(path)
}

// answers tells whether somebody listens on a socket.
func answers(path string) bool {
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// listenerPID returns the process that listens at the other end of conn.
func listenerPID(conn net.Conn) string {
	cred, err := peerOf(conn)
	if err != nil {
		return "unknown"
	}
	return strconv.Itoa(int(cred.Pid))
}

// peerOf returns the credentials of the other end of a unix socket, SO_PEERCRED
// of unix(7).
func peerOf(conn net.Conn) (*unix.Ucred, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T has no peer credentials", conn)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(cerr, err)
}

// sudoUser returns who called sudo to make us root, or -1.
func sudoUser() int {
	if os.Geteuid() != 0 {
		return -1
	}
	uid, err := strconv.Atoi(os.Getenv("SUDO_UID"))
	if err != nil || uid <= 0 {
		return -1
	}
	return uid
}

// peerCredentials tells the server who is at the other end of a connection.
type peerCredentials struct{}

var _ credentials.TransportCredentials = peerCredentials{}

// caller is the user at the other end.
type caller struct {
	credentials.CommonAuthInfo
	uid int
}

// AuthType implements credentials.AuthInfo.
func (caller) AuthType() string { return "unix" }

func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cred, err := peerOf(conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return conn, caller{CommonAuthInfo: level, uid: int(cred.Uid)}, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("peer credentials are the server's")
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

func (p peerCredentials) Clone() credentials.TransportCredentials { return p }

// OverrideServerName does nothing: a socket has no name to check.
func (peerCredentials) OverrideServerName(string) error { return nil }

// admit refuses calls of users that may not use the gateway.
type admit struct{ sudo int }

func (a admit) check(ctx context.Context) error {
	p, _ := peer.FromContext(ctx)
	if p != nil {
		if who, ok := p.AuthInfo.(caller); ok && (who.uid == 0 || who.uid == os.Geteuid() || who.uid == a.sudo) {
			return nil
		}
	}
	return grpcerr.To(fmt.Errorf("%w: the gateway serves its own user, root and the user that called sudo", core.ErrPermission))
}

func (a admit) unary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if err := a.check(ctx); err != nil {
		return nil, err
	}
	return h(ctx, r)
}

func (a admit) stream(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if err := a.check(ss.Context()); err != nil {
		return err
	}
	return h(s, ss)
}
