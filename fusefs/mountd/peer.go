package mountd

import (
	"errors"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/internal/logging"
)

// onlyPeers passes on connections of our own user and of root (SO_PEERCRED,
// unix(7)) and closes all others.
func onlyPeers(l net.Listener, log *slog.Logger) net.Listener { return &peerListener{l, log} }

type peerListener struct {
	net.Listener
	log *slog.Logger
}

func (l *peerListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(c)
		if err == nil && (uid == 0 || uid == uint32(os.Geteuid())) {
			return c, nil
		}
		l.log.Warn("connection of another user refused", "uid", uid, logging.Err, err)
		_ = c.Close()
	}
}

func peerUID(c net.Conn) (uint32, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, cerr); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
