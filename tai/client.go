// Package tai is the client of a node (`tai serve`). A node has one runtime, so
// every pool on it sees the same boxes; the gateway's labels tell them apart.
package tai

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxrpc"
)

// Client is a connection to a node, which it makes and makes again when needed.
type Client struct {
	conn *grpc.ClientConn
}

// Option changes how Dial connects.
type Option func(*settings)

type settings struct {
	dial []grpc.DialOption
}

// WithDialOptions adds options to the gRPC connection.
func WithDialOptions(o ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, o...) }
}

// Dial returns a client of the node at a unix socket: its absolute path, with or
// without unix:// before it. It does not wait for the node.
func Dial(addr string, opts ...Option) (*Client, error) {
	path := strings.TrimPrefix(addr, "unix://")
	if !filepath.IsAbs(path) {
		return nil, core.Invalid("node address %q: not the absolute path of a unix socket", addr)
	}
	s := settings{dial: []grpc.DialOption{
		// The socket's mode and the peer's credentials are what protects it.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}),
	}}
	for _, o := range opts {
		o(&s)
	}
	conn, err := grpc.NewClient("passthrough:///node", s.dial...)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", addr, err)
	}
	return &Client{conn: conn}, nil
}

// Backend returns the node's boxes as those of a pool. A node that does not
// answer is core.ErrUnavailable.
func (c *Client) Backend(p core.PoolName) core.Backend {
	return boxrpc.New(c.conn, p, core.ErrUnavailable)
}

// Close closes the connection; calls in flight fail.
func (c *Client) Close() error { return c.conn.Close() }
