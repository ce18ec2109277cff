package mountd

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	mountv1 "github.com/yaoapp/sbgw/proto/sbgw/mount/v1"
)

// Client is a connection to a running mount process. Its methods may be called
// concurrently.
type Client struct {
	conn     *grpc.ClientConn
	rpc      mountv1.MountServiceClient
	fdSocket string

	mu     sync.Mutex
	keeper *keeper
}

var _ core.Mounter = (*Client)(nil)

// Info is who a mount process is.
type Info struct {
	PID     int
	Version string
	Root    string
}

// Connect finds a running mount process by its sockets. None there is
// ErrUnavailable. Close what it returns.
func Connect(ctx context.Context, socket, fdSocket string) (*Client, error) {
	if err := checkSocketPaths(socket, fdSocket); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the mount process: %w", err)
	}
	c := &Client{conn: conn, rpc: mountv1.NewMountServiceClient(conn), fdSocket: fdSocket}
	if _, err := c.Info(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

// Info asks who answers.
func (c *Client) Info(ctx context.Context) (Info, error) {
	r, err := c.rpc.Info(ctx, &mountv1.InfoRequest{})
	if err != nil {
		return Info{}, fmt.Errorf("ask the mount process: %w", grpcerr.From(err))
	}
	return Info{PID: int(r.GetPid()), Version: r.GetVersion(), Root: r.GetRoot()}, nil
}

// Attach mounts a volume; see core.Mounter.
func (c *Client) Attach(ctx context.Context, w core.WorkspaceID, e core.Endpoint, o core.MountOptions) (string, error) {
	r, err := c.rpc.Attach(ctx, &mountv1.AttachRequest{
		Workspace: string(w), Endpoint: boxpb.FromEndpoint(e),
		Options: &mountv1.MountOptions{
			Symlinks: o.Symlinks, Owner: o.Owner, Uid: uint32(o.UID), Gid: uint32(o.GID), ReadOnly: o.ReadOnly,
		},
	})
	if err != nil {
		return "", grpcerr.From(err)
	}
	return r.GetPath(), nil
}

// Detach unmounts a volume; see core.Mounter.
func (c *Client) Detach(ctx context.Context, w core.WorkspaceID) error {
	_, err := c.rpc.Detach(ctx, &mountv1.DetachRequest{Workspace: string(w)})
	return grpcerr.From(err)
}

// Settle waits for what is acknowledged; see core.Mounter.
func (c *Client) Settle(ctx context.Context, w core.WorkspaceID) error {
	_, err := c.rpc.Settle(ctx, &mountv1.SettleRequest{Workspace: string(w)})
	return grpcerr.From(err)
}

// Refresh drops what is untrue after an event; see core.Mounter.
func (c *Client) Refresh(ctx context.Context, w core.WorkspaceID, e core.Event) error {
	_, err := c.rpc.Refresh(ctx, &mountv1.RefreshRequest{Workspace: string(w), Event: boxpb.FromEvent(e)})
	return grpcerr.From(err)
}

// Mounts lists the mounts; see core.Mounter.
func (c *Client) Mounts(ctx context.Context) ([]core.MountState, error) {
	r, err := c.rpc.Mounts(ctx, &mountv1.MountsRequest{})
	if err != nil {
		return nil, grpcerr.From(err)
	}
	var all []core.MountState
	for _, m := range r.GetMounts() {
		all = append(all, core.MountState{
			Workspace: core.WorkspaceID(m.GetWorkspace()), Path: m.GetPath(), Link: m.GetLink(),
			OpenFiles: int(m.GetOpenFiles()), Errors: m.GetErrors(),
		})
	}
	return all, nil
}

// Shutdown ends the mount process, which detaches everything first.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.rpc.Shutdown(ctx, &mountv1.ShutdownRequest{})
	return grpcerr.From(err)
}

// KeepFDs collects a duplicate of every mount's descriptor, now and as mounts
// come and go, until Close or the end of the mount process, which Gone tells.
// Keeping again is a no-op while that runs.
func (c *Client) KeepFDs() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeper != nil {
		select {
		case <-c.keeper.gone:
		default:
			return nil
		}
	}
	k, err := newKeeper(c.fdSocket)
	if err != nil {
		return err
	}
	c.keeper = k
	return nil
}

// Kept returns how many descriptors are kept.
func (c *Client) Kept() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeper == nil {
		return 0
	}
	return c.keeper.count()
}

// Gone is closed when the mount process whose descriptors are kept is gone, or
// after Close; nil before KeepFDs. The duplicates are closed by then, so callers
// in its mounts get an error and do not wait for ever: have Ensure start another.
func (c *Client) Gone() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeper == nil {
		return nil
	}
	return c.keeper.gone
}

// Close lets go of the mount process, which goes on.
func (c *Client) Close() error {
	c.mu.Lock()
	k := c.keeper
	c.mu.Unlock()
	if k != nil {
		k.close()
	}
	return c.conn.Close()
}
