package gateway

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
	"github.com/yaoapp/sbgw/workspace"
)

// Statuses of a workspace.
const (
	workspaceReady       = "ready"
	workspaceUnavailable = "unavailable"
)

func (s *service) CreateWorkspace(ctx context.Context, r *gatewayv1.CreateWorkspaceRequest) (*gatewayv1.CreateWorkspaceResponse, error) {
	w, err := s.g.manager.CreateWorkspace(ctx, workspace.Options{
		ID: workspace.ID(r.GetId()), Name: r.GetName(), Owner: workspace.Owner(r.GetOwner()),
		Pool: workspace.PoolName(r.GetPool()), Labels: r.GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.CreateWorkspaceResponse{Workspace: s.workspace(w, nil)}, nil
}

func (s *service) GetWorkspace(ctx context.Context, r *gatewayv1.GetWorkspaceRequest) (*gatewayv1.GetWorkspaceResponse, error) {
	if err := workspace.CheckID(r.GetId()); err != nil {
		return nil, err
	}
	w, err := s.g.workspaces.Get(ctx, workspace.ID(r.GetId()))
	if err != nil {
		return nil, err
	}
	users, err := s.users(ctx)
	if err != nil {
		return nil, err
	}
	return &gatewayv1.GetWorkspaceResponse{Workspace: s.workspace(w, users)}, nil
}

func (s *service) ListWorkspaces(ctx context.Context, r *gatewayv1.ListWorkspacesRequest) (*gatewayv1.ListWorkspacesResponse, error) {
	list, err := s.g.workspaces.List(ctx, workspace.Filter{Owner: workspace.Owner(r.GetOwner()), Pool: workspace.PoolName(r.GetPool())})
	if err != nil {
		return nil, err
	}
	users, err := s.users(ctx)
	if err != nil {
		return nil, err
	}
	resp := &gatewayv1.ListWorkspacesResponse{}
	for _, w := range list {
		resp.Workspaces = append(resp.Workspaces, s.workspace(w, users))
	}
	return resp, nil
}

func (s *service) DeleteWorkspace(ctx context.Context, r *gatewayv1.DeleteWorkspaceRequest) (*gatewayv1.DeleteWorkspaceResponse, error) {
	if err := workspace.CheckID(r.GetId()); err != nil {
		return nil, err
	}
	return &gatewayv1.DeleteWorkspaceResponse{}, s.g.manager.DeleteWorkspace(ctx, core.WorkspaceID(r.GetId()))
}

// users returns the boxes of each workspace.
func (s *service) users(ctx context.Context) (map[string][]string, error) {
	boxes, err := s.g.manager.List(ctx, core.ListOptions{})
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, b := range boxes {
		users[b.WorkspaceID()] = append(users[b.WorkspaceID()], b.ID())
	}
	return users, nil
}

// workspace returns a workspace as a message. It is unavailable while it is not
// mounted or its pool does not answer.
func (s *service) workspace(w workspace.Workspace, users map[string][]string) *gatewayv1.Workspace {
	path, mounted := s.g.manager.Path(string(w.ID))
	m := &gatewayv1.Workspace{
		Id: string(w.ID), Name: w.Name, Owner: string(w.Owner), Pool: string(w.Pool), Labels: w.Labels,
		CreatedAt: timestamppb.New(w.CreatedAt), Path: path, Status: workspaceReady, Boxes: users[string(w.ID)],
	}
	if !mounted || s.g.launcher.Ready(w.Pool) != nil {
		m.Status = workspaceUnavailable
	}
	return m
}

func boxMessage(i *core.BoxInfo, path string) *gatewayv1.Box {
	m := &gatewayv1.Box{
		Id: i.ID, Pool: i.Pool, Owner: i.Owner, Status: i.Status, Reason: i.Reason, Image: i.Image, Policy: string(i.Policy),
		Workspace: i.Workspace, Path: path, Labels: i.Labels, CreatedAt: timestamppb.New(i.CreatedAt),
		LastActive: timestamppb.New(i.LastActive), Processes: int32(i.ProcessCount), ContainerId: i.ContainerID,
		Incarnation: i.Incarnation, Network: i.Network, Ip: i.IP, Ports: boxpb.FromPorts(i.Ports), Vnc: i.VNC,
	}
	if i.ExitCode != nil {
		code := int32(*i.ExitCode)
		m.ExitCode = &code
	}
	return m
}
