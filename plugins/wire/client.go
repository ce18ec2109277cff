package wire

import (
	"context"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxrpc"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	pluginv1 "github.com/yaoapp/sbgw/proto/sbgw/plugin/v1"
)

// Client is the driver at the other end of a connection. A call whose plugin
// process died under it is core.ErrPluginGone.
type Client struct {
	conn grpc.ClientConnInterface
	c    pluginv1.DriverServiceClient
}

var _ core.Driver = (*Client)(nil)

// NewClient returns the driver at the other end of conn.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{conn: conn, c: pluginv1.NewDriverServiceClient(conn)}
}

// Describe implements core.Driver.
func (c *Client) Describe(ctx context.Context) (core.DriverInfo, error) {
	m, err := c.c.Describe(ctx, &pluginv1.DescribeRequest{ApiVersion: core.APIVersion})
	if err != nil {
		return core.DriverInfo{}, goneErr(err)
	}
	return core.DriverInfo{Kind: m.GetKind(), Version: m.GetVersion(), APIVersion: int(m.GetApiVersion())}, nil
}

// Open implements core.Driver.
func (c *Client) Open(ctx context.Context, p core.PoolConfig) (core.Backend, error) {
	_, err := c.c.Open(ctx, &pluginv1.OpenRequest{
		Pool: string(p.Name), Addr: p.Addr, Options: p.Options,
		StateDir: p.StateDir, Gateway: p.Gateway, Hide: p.Hide,
	})
	if err != nil {
		return nil, goneErr(err)
	}
	return boxrpc.New(c.conn, p.Name, core.ErrPluginGone), nil
}

// Close implements core.Driver.
func (c *Client) Close(ctx context.Context, p core.PoolName) error {
	_, err := c.c.Close(ctx, &pluginv1.CloseRequest{Pool: string(p)})
	return goneErr(err)
}

// Beat is one message of Health.
type Beat struct {
	// Pool is empty in a mere sign of life.
	Pool core.PoolName
	// Reason says why the pool is not ready; empty: it is.
	Reason string
}

// Health calls f with the state of every open pool, with each change, and with a
// sign of life at least every two seconds, until the context or the process
// ends, and returns why it ended. f must not block.
func (c *Client) Health(ctx context.Context, f func(Beat)) error {
	stream, err := c.c.Health(ctx, &pluginv1.HealthRequest{})
	if err != nil {
		return goneErr(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return goneErr(err)
		}
		b := Beat{Pool: core.PoolName(m.GetPool())}
		if b.Pool != "" && !m.GetReady() {
			b.Reason = m.GetReason()
			if b.Reason == "" {
				b.Reason = "not ready"
			}
		}
		f(b)
	}
}

func goneErr(err error) error { return grpcerr.From(err, core.ErrPluginGone) }
