package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

// Box is a handle on a box of the gateway. What its accessors say was true when
// the handle was made.
type Box struct {
	c    *Client
	info *core.BoxInfo
	path string
}

func (c *Client) box(m *gatewayv1.Box) *Box {
	return &Box{c: c, info: boxInfo(m), path: m.GetPath()}
}

// ID returns the box's id.
func (b *Box) ID() string { return b.info.ID }

// Owner returns who the box belongs to.
func (b *Box) Owner() string { return b.info.Owner }

// ContainerID returns the backend's own name of the box.
func (b *Box) ContainerID() string { return b.info.ContainerID }

// Pool returns the pool that the box is on.
func (b *Box) Pool() string { return b.info.Pool }

// WorkspaceID returns the box's workspace.
func (b *Box) WorkspaceID() string { return b.info.Workspace }

// Path returns the local directory that shows the box's files, empty if none does.
func (b *Box) Path() string { return b.path }

// Snapshot returns what was known of the box when the handle was made.
func (b *Box) Snapshot() core.BoxInfo { return *b.info }

// Info asks for what is known of the box now.
func (b *Box) Info(ctx context.Context) (*core.BoxInfo, error) {
	m, err := b.c.api.GetBox(ctx, &gatewayv1.GetBoxRequest{Id: b.ID()})
	if err != nil {
		return nil, grpcerr.From(err)
	}
	return boxInfo(m.GetBox()), nil
}

// Start starts a stopped box; a running one is success.
func (b *Box) Start(ctx context.Context) error {
	_, err := b.c.api.StartBox(ctx, &gatewayv1.StartBoxRequest{Id: b.ID()})
	return grpcerr.From(err)
}

// Stop stops the box: SIGTERM, after its grace time SIGKILL. Files stay.
func (b *Box) Stop(ctx context.Context) error {
	_, err := b.c.api.StopBox(ctx, &gatewayv1.StopBoxRequest{Id: b.ID()})
	return grpcerr.From(err)
}

// Remove kills and deletes the box. Its workspace stays.
func (b *Box) Remove(ctx context.Context) error { return b.c.Remove(ctx, b.ID()) }

func boxInfo(m *gatewayv1.Box) *core.BoxInfo {
	info := &core.BoxInfo{
		ID: m.GetId(), ContainerID: m.GetContainerId(), Pool: m.GetPool(), Owner: m.GetOwner(), Status: m.GetStatus(),
		Policy: core.LifecyclePolicy(m.GetPolicy()), Labels: m.GetLabels(), Image: m.GetImage(),
		CreatedAt: timeOf(m.GetCreatedAt()), LastActive: timeOf(m.GetLastActive()),
		ProcessCount: int(m.GetProcesses()), VNC: m.GetVnc(), Workspace: m.GetWorkspace(), Ports: boxpb.ToPorts(m.GetPorts()),
		IP: m.GetIp(), Network: m.GetNetwork(), Reason: m.GetReason(), Incarnation: m.GetIncarnation(),
	}
	if m.ExitCode != nil {
		code := int(m.GetExitCode())
		info.ExitCode = &code
	}
	return info
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
