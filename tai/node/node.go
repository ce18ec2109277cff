// Package node is the node agent, `tai serve`: boxes made by an OCI runtime of
// this machine, and the volumes that they and the mounts share, served on a unix
// socket. Runtime is the boxes as a core.Backend, Run the process around it.
//
// A node owns one state directory:
//
//	node.lock    held by the running node, with its pid
//	boxes/<id>   a box, see package shim
//	volumes/<s>  a volume's files
//	runc         the OCI runtime's own state
//	bin          copies of this program, for shims and for use in boxes
//	trash        what is being deleted
//
// A node may die at any time: boxes and their processes run on under their shims,
// and the next node finds them by these directories.
//
// Lock order: a box's operation slot, then Runtime.mu. Nothing is called out with
// Runtime.mu held.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxrpc"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/shim"
	"github.com/yaoapp/sbgw/volume"
)

// stopTimeout bounds how long calls in flight keep a node from ending.
const stopTimeout = 5 * time.Second

// Options are the settings of a node.
type Options struct {
	// Socket is the unix socket that the node serves on.
	Socket string
	// StateDir is the node's own directory, on ext4, xfs or btrfs at best.
	StateDir string
	// Hide lists further paths of this machine that no box may see.
	Hide []string
	// Binary is the tai program; empty is the running one.
	Binary  string
	Version string
	Log     *slog.Logger
	// EventDelay holds file change events back, for tests.
	EventDelay time.Duration
}

// Run serves until the context ends. Boxes stay.
func Run(ctx context.Context, o Options) error {
	o.Log = logging.OrDiscard(o.Log)
	state, err := filepath.Abs(o.StateDir)
	if err != nil {
		return err
	}
	o.StateDir = state
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	lock, err := lockState(state)
	if err != nil {
		return err
	}
	defer lock.Close()
	listener, err := listen(ctx, o.Socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	return serve(ctx, listener, o)
}

func serve(ctx context.Context, l net.Listener, o Options) error {
	volumes := volume.NewServer(volume.ServerOptions{
		Dir:        func(name string, _ []byte) (string, error) { return volumeDir(o.StateDir, core.VolumeSession(name)) },
		Log:        o.Log,
		EventDelay: o.EventDelay,
	})
	rt, err := Open(ctx, o, volumes)
	if err != nil {
		return errors.Join(err, volumes.Close())
	}
	server := grpc.NewServer(append(volume.Tuning(), grpc.WaitForHandlers(true))...)
	boxrpc.Register(server, func(core.PoolName) (core.Backend, error) { return rt, nil })
	volumes.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	o.Log.Info("node serves", logging.Addr, o.Socket, logging.Path, o.StateDir, logging.Version, o.Version)

	select {
	case err = <-served:
		err = errors.Join(err, rt.Close(), volumes.Close())
	case <-ctx.Done():
		err = stop(server, rt, volumes)
	}
	o.Log.Info("node ended, boxes stay")
	return err
}

// stop ends calls in flight, those that carry a box's processes by letting go of
// the processes.
func stop(server *grpc.Server, rt *Runtime, volumes *volume.Server) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.Stop()
	}()
	rt.letGo()
	err := volumes.Close()
	select {
	case <-stopped:
		return errors.Join(err, rt.Close())
	case <-time.After(stopTimeout):
		return errors.Join(err, errors.New("calls in flight did not end"))
	}
}

// lockState makes this process the only node of a state directory.
func lockState(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "node.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0)
		f.Close()
		if err != unix.EWOULDBLOCK {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: state directory %s is in use by the node with pid %s",
			core.ErrConflict, dir, strings.TrimSpace(string(holder[:n])))
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// maxSocketPath is what fits into an address with its final NUL (unix(7)).
const maxSocketPath = 107

// listen makes the socket, in place of one that a dead node left.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, core.Invalid("socket path %s has %d bytes, a unix socket's path has at most %d: use a shorter state directory",
			path, len(path), maxSocketPath)
	}
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%w: socket %s is in use by another process", core.ErrConflict, path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return trustedListener{l.(*net.UnixListener)}, nil
}

// trustedListener drops connections of other users than root and our own.
type trustedListener struct{ *net.UnixListener }

// Accept is of net.Listener.
func (l trustedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if shim.Trusted(conn) {
			return conn, nil
		}
		conn.Close()
	}
}
