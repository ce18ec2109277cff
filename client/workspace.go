package client

import (
	"context"

	"github.com/yaoapp/sbgw/internal/grpcerr"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
	"github.com/yaoapp/sbgw/workspace"
)

// Workspace is a workspace of the gateway.
type Workspace struct {
	workspace.Workspace
	// Path is the local directory that shows it, empty if none does.
	Path string
	// Status is ready, or unavailable while its pool can't be reached.
	Status string
	// Boxes are those that use it.
	Boxes []string
}

// CreateWorkspace makes a workspace.
func (c *Client) CreateWorkspace(ctx context.Context, o workspace.Options) (*Workspace, error) {
	m, err := c.api.CreateWorkspace(ctx, &gatewayv1.CreateWorkspaceRequest{
		Id: string(o.ID), Name: o.Name, Owner: string(o.Owner), Pool: string(o.Pool), Labels: o.Labels,
	})
	return workspaceOf(m.GetWorkspace()), grpcerr.From(err)
}

// GetWorkspace returns the workspace of this id, or core.ErrNotFound.
func (c *Client) GetWorkspace(ctx context.Context, id string) (*Workspace, error) {
	m, err := c.api.GetWorkspace(ctx, &gatewayv1.GetWorkspaceRequest{Id: id})
	return workspaceOf(m.GetWorkspace()), grpcerr.From(err)
}

// ListWorkspaces returns the workspaces that pass the filter.
func (c *Client) ListWorkspaces(ctx context.Context, f workspace.Filter) ([]*Workspace, error) {
	m, err := c.api.ListWorkspaces(ctx, &gatewayv1.ListWorkspacesRequest{Owner: string(f.Owner), Pool: string(f.Pool)})
	if err != nil {
		return nil, grpcerr.From(err)
	}
	list := make([]*Workspace, len(m.GetWorkspaces()))
	for i, w := range m.GetWorkspaces() {
		list[i] = workspaceOf(w)
	}
	return list, nil
}

// DeleteWorkspace deletes a workspace with all its files; one that a box uses is
// core.ErrConflict.
func (c *Client) DeleteWorkspace(ctx context.Context, id string) error {
	_, err := c.api.DeleteWorkspace(ctx, &gatewayv1.DeleteWorkspaceRequest{Id: id})
	return grpcerr.From(err)
}

func workspaceOf(m *gatewayv1.Workspace) *Workspace {
	if m == nil {
		return nil
	}
	return &Workspace{
		Workspace: workspace.Workspace{
			ID: workspace.ID(m.GetId()), Name: m.GetName(), Owner: workspace.Owner(m.GetOwner()),
			Pool: workspace.PoolName(m.GetPool()), Labels: m.GetLabels(), CreatedAt: timeOf(m.GetCreatedAt()),
		},
		Path: m.GetPath(), Status: m.GetStatus(), Boxes: m.GetBoxes(),
	}
}
