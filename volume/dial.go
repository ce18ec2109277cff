package volume

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/yaoapp/sbgw/core"
)

// maxSocketPath is what sockaddr_un holds, with its NUL.
const maxSocketPath = 107

// dialer returns how an endpoint is connected to.
func dialer(e core.Endpoint) (func(context.Context, string) (net.Conn, error), error) {
	var d net.Dialer
	switch e.Kind {
	case core.EndpointUnix, core.EndpointBridge:
		if len(e.Address) > maxSocketPath {
			return nil, core.Invalid("socket path %q is longer than %d bytes", e.Address, maxSocketPath)
		}
		return func(ctx context.Context, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", e.Address)
		}, nil
	case core.EndpointTCP:
		return func(ctx context.Context, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", e.Address)
		}, nil
	case core.EndpointCmd:
		if len(e.Argv) == 0 {
			return nil, core.Invalid("volume endpoint of kind cmd without a command")
		}
		return func(context.Context, string) (net.Conn, error) { return runConn(e.Argv) }, nil
	}
	return nil, core.Unsupported(fmt.Sprintf("volume endpoint of kind %q", e.Kind))
}

// connect makes a gRPC connection of its own to an endpoint, on first use.
func connect(dial func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///volume",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(windowSize),
		grpc.WithInitialConnWindowSize(windowSize),
		grpc.WithReadBufferSize(1<<17),
		grpc.WithWriteBufferSize(1<<17),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*maxMessage)),
	)
}

// commandConn is a connection that is a process's standard input and output.
type commandConn struct {
	net.Conn
	cmd  *exec.Cmd
	once sync.Once
}

// runConn starts a command as a connection. A socket pair rather than pipes, so
// that deadlines work.
func runConn(argv []string) (net.Conn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	defer ours.Close() // FileConn has a duplicate
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("use a socket pair: %w", err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, os.Stderr
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("run %q: %w", argv[0], err)
	}
	return &commandConn{Conn: conn, cmd: cmd}, nil
}

// Close ends the connection and the process, which has a second to end by itself.
func (c *commandConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		kill := time.AfterFunc(time.Second, func() { c.cmd.Process.Kill() })
		c.cmd.Wait() // its exit status says nothing about the connection
		kill.Stop()
	})
	return err
}
