// Package client is the Go client of a running gateway: the methods of core's
// Manager and Box, by the same names, over sbgw.gateway.v1. Errors are of core's
// kinds, so errors.Is works on both sides.
package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

// dialTimeout bounds the first connection, to a socket of this machine.
const dialTimeout = 5 * time.Second

// maxMessage bounds an answer; a list of some ten thousand boxes fits.
const maxMessage = 32 << 20

// Client is a connection to a gateway. Its methods may be called concurrently.
type Client struct {
	conn *grpc.ClientConn
	api  gatewayv1.GatewayServiceClient
}

// Dial connects to the gateway at unix:///path. One that is not there is
// core.ErrUnavailable, one that refuses this user core.ErrPermission.
func Dial(addr string) (*Client, error) {
	path := strings.TrimPrefix(addr, "unix://")
	if !filepath.IsAbs(path) {
		return nil, core.Invalid("address %q: need unix:///absolute/path", addr)
	}
	if err := probe(path); err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return &Client{conn: conn, api: gatewayv1.NewGatewayServiceClient(conn)}, nil
}

// probe tells why nobody would answer, which gRPC only says in words.
func probe(path string) error {
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("connect to %s: %w: only the gateway's own user, root and the user that called sudo may use it", path, core.ErrPermission)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: no gateway runs at %s; start it with `sbgw up`", core.ErrUnavailable, path)
	}
	return fmt.Errorf("connect to %s: %w: %w", path, core.ErrUnavailable, err)
}

// Close ends the connection. Commands that run in boxes go on.
func (c *Client) Close() error { return c.conn.Close() }

// Create makes and starts a box.
func (c *Client) Create(ctx context.Context, o core.CreateOptions) (*Box, error) {
	return c.create(ctx, o, false)
}

// GetOrCreate returns the box with o.ID, making it if there is none.
func (c *Client) GetOrCreate(ctx context.Context, o core.CreateOptions) (*Box, error) {
	return c.create(ctx, o, true)
}

func (c *Client) create(ctx context.Context, o core.CreateOptions, reuse bool) (*Box, error) {
	r := &gatewayv1.CreateBoxRequest{
		Id: o.ID, Owner: o.Owner, Labels: o.Labels, Pool: o.Pool, Image: o.Image, WorkDir: o.WorkDir, User: o.User,
		Env: o.Env, Memory: o.Memory, Cpus: o.CPUs, Vnc: o.VNC, Ports: boxpb.FromPorts(o.Ports), Policy: string(o.Policy),
		Workspace: o.WorkspaceID, MountMode: o.MountMode, MountPath: o.MountPath, Reuse: reuse,
	}
	if o.IdleTimeout != 0 {
		r.IdleTimeout = durationpb.New(o.IdleTimeout)
	}
	if o.StopTimeout != 0 {
		r.StopTimeout = durationpb.New(o.StopTimeout)
	}
	m, err := c.api.CreateBox(ctx, r)
	if err != nil {
		return nil, grpcerr.From(err)
	}
	return c.box(m.GetBox()), nil
}

// Get returns the box of this id, or core.ErrNotFound.
func (c *Client) Get(ctx context.Context, id string) (*Box, error) {
	m, err := c.api.GetBox(ctx, &gatewayv1.GetBoxRequest{Id: id})
	if err != nil {
		return nil, grpcerr.From(err)
	}
	return c.box(m.GetBox()), nil
}

// List returns the boxes that pass the filter.
func (c *Client) List(ctx context.Context, o core.ListOptions) ([]*Box, error) {
	m, err := c.api.ListBoxes(ctx, &gatewayv1.ListBoxesRequest{Owner: o.Owner, Pool: o.Pool, Labels: o.Labels})
	if err != nil {
		return nil, grpcerr.From(err)
	}
	boxes := make([]*Box, len(m.GetBoxes()))
	for i, b := range m.GetBoxes() {
		boxes[i] = c.box(b)
	}
	return boxes, nil
}

// Remove kills and deletes a box. Its workspace stays.
func (c *Client) Remove(ctx context.Context, id string) error {
	_, err := c.api.RemoveBox(ctx, &gatewayv1.RemoveBoxRequest{Id: id})
	return grpcerr.From(err)
}

// Path returns the local directory of a box or a workspace.
func (c *Client) Path(ctx context.Context, id string) (string, error) {
	m, err := c.api.GetPath(ctx, &gatewayv1.GetPathRequest{Id: id})
	return m.GetPath(), grpcerr.From(err)
}

// Status returns what the gateway, its pools, plugins and mounts are doing.
func (c *Client) Status(ctx context.Context) (*gatewayv1.GetStatusResponse, error) {
	m, err := c.api.GetStatus(ctx, &gatewayv1.GetStatusRequest{})
	return m, grpcerr.From(err)
}

// Shutdown ends the gateway. With stopBoxes the boxes of its pools are stopped,
// with their files kept, and named in the answer; mounts and the processes that
// the gateway started end.
func (c *Client) Shutdown(ctx context.Context, stopBoxes bool) ([]string, error) {
	m, err := c.api.Shutdown(ctx, &gatewayv1.ShutdownRequest{StopBoxes: stopBoxes})
	return m.GetStopped(), grpcerr.From(err)
}
