// Package mountd is the mount process: one process for all mounts, which
// outlives the gateway, so nothing in the gateway can dead-lock on a mount of its
// own and a restart of the gateway leaves every mount and open file alone. The
// gateway is its client (Connect, Ensure) over sbgw.mount.v1 on a unix socket; on
// a second one it is handed a duplicate of each mount's FUSE descriptor, which
// keeps the mount alive until a successor takes it.
//
//   - mountd.go, service.go: the process and its API;
//   - mount.go: one mount; kernel.go: mount(2), fusermount3, abort;
//   - local.go: volumes that are directories of this machine;
//   - root.go: the mount root, its lock, and what an earlier process left there;
//   - fds.go: descriptors; peer.go: who may connect;
//   - client.go, ensure.go: the gateway's side.
//
// This process never opens a path on a mount of its own: it would wait for
// itself. What it has to know of mounts it reads in /proc/self/mountinfo.
package mountd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	mountv1 "github.com/yaoapp/sbgw/proto/sbgw/mount/v1"
	"github.com/yaoapp/sbgw/volume"
)

// Config is what a mount process is told.
type Config struct {
	// Socket is where the API is served, FDSocket where descriptors are handed out.
	Socket, FDSocket string
	// Root is the directory that has a directory for each mounted workspace.
	Root string
	// AllowOther lets other users in; the modes of files decide then.
	AllowOther bool
	// UID and GID own what is mounted where the options of a mount don't say.
	UID, GID int
	Log      *slog.Logger
	Version  string
}

// shutdownTime bounds the end of the process.
const shutdownTime = 20 * time.Second

// Run is the mount process. It returns when the context ends, on SIGTERM or
// SIGINT, or after Shutdown, with everything detached.
func Run(ctx context.Context, c Config) (err error) {
	log := logging.OrDiscard(c.Log)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	raiseFileLimit(log)
	if err := checkSocketPaths(c.Socket, c.FDSocket); err != nil {
		return err
	}
	unlock, err := lockSocket(c.Socket)
	if err != nil {
		return err
	}
	defer unlock()
	root, err := openRoot(c.Root, c.AllowOther, log)
	if err != nil {
		return err
	}
	defer root.close()

	api, err := listen("unix", c.Socket)
	if err != nil {
		return err
	}
	fdListener, err := listen("unixpacket", c.FDSocket)
	if err != nil {
		return errors.Join(err, api.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newService(c, log, root, cancel)
	log.Info("mount process started", logging.Path, root.path, logging.PID, os.Getpid(), logging.Version, c.Version)
	err = serve(ctx, s, api, fdListener)
	log.Info("mount process ended", logging.Err, err)
	return err
}

// serve runs both sockets until ctx ends, then detaches everything.
func serve(ctx context.Context, s *service, api, fds net.Listener) error {
	srv := grpc.NewServer(volume.Tuning()...)
	mountv1.RegisterMountServiceServer(srv, s)
	s.local.server.Register(srv)
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	wg.Go(func() { failed <- srv.Serve(onlyPeers(api, s.log)) })
	wg.Go(func() { s.fds.serve(onlyPeers(fds, s.log)) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	end, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	err = errors.Join(err, s.detachAll(end))
	stopGracefully(srv, time.Second)
	err = errors.Join(err, s.local.server.Close())
	s.fds.close()
	_ = fds.Close()
	wg.Wait()
	s.wg.Wait()
	return err
}

// stopGracefully lets answers out that are on their way, Shutdown's above all.
func stopGracefully(srv *grpc.Server, within time.Duration) {
	t := time.AfterFunc(within, srv.Stop)
	defer t.Stop()
	srv.GracefulStop()
}

// raiseFileLimit takes as many descriptors as it is given: each mount has some
// and each connection to a volume has.
func raiseFileLimit(log *slog.Logger) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return
	}
	lim.Cur = lim.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		log.Debug("file limit stays", logging.Err, err)
	}
}

// maxSocketPath is how long a path sockaddr_un takes (unix(7)), without the NUL.
const maxSocketPath = 107

func checkSocketPaths(paths ...string) error {
	for _, p := range paths {
		if p == "" || len(p) > maxSocketPath {
			return core.Invalid("socket path %q: it must have 1 to %d bytes; use a shorter state directory", p, maxSocketPath)
		}
	}
	return nil
}

// listen makes a socket that only its owner can connect to. What is in its place
// is a leftover, as the caller has the lock.
func listen(network, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an old socket: %w", err)
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict the socket: %w", err), l.Close())
	}
	return l, nil
}
