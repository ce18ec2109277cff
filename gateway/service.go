package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/logging"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
	"github.com/yaoapp/sbgw/workspace"
)

// infoWorkers bounds how many boxes a listing asks for at a time.
const infoWorkers = 16

// infoTimeout bounds how long a listing waits for one box's backend.
const infoTimeout = 5 * time.Second

// serve begins to answer on the API's socket.
func (g *Gateway) serve(sudo int) {
	a := admit{sudo: sudo}
	g.server = grpc.NewServer(
		grpc.Creds(peerCredentials{}),
		grpc.ChainUnaryInterceptor(a.unary, g.readyUnary),
		grpc.ChainStreamInterceptor(a.stream, g.readyStream),
	)
	gatewayv1.RegisterGatewayServiceServer(g.server, &service{g: g})
	g.work.Go(func() {
		if err := g.server.Serve(g.listener); err != nil {
			g.log.Error("serve the API", logging.Err, err)
		}
	})
}

// awaitReady holds calls back until boxes are known, so that nothing that exists
// is "not found" in the first moments.
func (g *Gateway) awaitReady(ctx context.Context) error {
	select {
	case <-g.ready:
	case <-g.done:
	case <-ctx.Done():
		return grpcerr.To(context.Cause(ctx))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping {
		return grpcerr.To(fmt.Errorf("%w: the gateway is shutting down", core.ErrUnavailable))
	}
	return nil
}

func (g *Gateway) readyUnary(ctx context.Context, r any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if info.FullMethod != gatewayv1.GatewayService_GetStatus_FullMethodName {
		if err := g.awaitReady(ctx); err != nil {
			return nil, err
		}
	}
	resp, err := h(ctx, r)
	return resp, grpcerr.To(err)
}

func (g *Gateway) readyStream(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if err := g.awaitReady(ss.Context()); err != nil {
		return err
	}
	return grpcerr.To(h(s, ss))
}

// service is sbgw.gateway.v1 over core. Interceptors turn its errors into
// statuses.
type service struct {
	gatewayv1.UnimplementedGatewayServiceServer
	g *Gateway
}

func (s *service) CreateBox(ctx context.Context, r *gatewayv1.CreateBoxRequest) (*gatewayv1.CreateBoxResponse, error) {
	create := s.g.manager.Create
	if r.GetReuse() {
		create = s.g.manager.GetOrCreate
	}
	b, err := create(ctx, core.CreateOptions{
		ID: r.GetId(), Owner: r.GetOwner(), Labels: r.GetLabels(), Pool: r.GetPool(), Image: r.GetImage(),
		WorkDir: r.GetWorkDir(), User: r.GetUser(), Env: r.GetEnv(), Memory: r.GetMemory(), CPUs: r.GetCpus(), VNC: r.GetVnc(),
		Ports: boxpb.ToPorts(r.GetPorts()), Policy: core.LifecyclePolicy(r.GetPolicy()),
		IdleTimeout: r.GetIdleTimeout().AsDuration(), StopTimeout: r.GetStopTimeout().AsDuration(),
		WorkspaceID: r.GetWorkspace(), MountMode: r.GetMountMode(), MountPath: r.GetMountPath(),
	})
	if err != nil {
		return nil, err
	}
	m, err := s.box(ctx, b)
	return &gatewayv1.CreateBoxResponse{Box: m}, err
}

func (s *service) GetBox(ctx context.Context, r *gatewayv1.GetBoxRequest) (*gatewayv1.GetBoxResponse, error) {
	b, err := s.find(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	m, err := s.box(ctx, b)
	return &gatewayv1.GetBoxResponse{Box: m}, err
}

// find returns a box; what can't be an id at all is ErrInvalid, not ErrNotFound.
func (s *service) find(ctx context.Context, id string) (*core.Box, error) {
	if err := workspace.CheckID(id); err != nil {
		return nil, err
	}
	return s.g.manager.Get(ctx, id)
}

// box asks for a box's state and returns it as a message.
func (s *service) box(ctx context.Context, b *core.Box) (*gatewayv1.Box, error) {
	info, err := b.Info(ctx)
	if err != nil {
		return nil, err
	}
	path, _ := s.g.manager.Path(b.ID())
	return boxMessage(info, path), nil
}

func (s *service) ListBoxes(ctx context.Context, r *gatewayv1.ListBoxesRequest) (*gatewayv1.ListBoxesResponse, error) {
	boxes, err := s.g.manager.List(ctx, core.ListOptions{Owner: r.GetOwner(), Pool: r.GetPool(), Labels: r.GetLabels()})
	if err != nil {
		return nil, err
	}
	all := make([]*gatewayv1.Box, len(boxes))
	var work sync.WaitGroup
	slots := make(chan struct{}, infoWorkers)
	for i, b := range boxes {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, infoTimeout)
			defer cancel()
			if m, err := s.box(ctx, b); err == nil { // else it went in the meantime
				all[i] = m
			}
		})
	}
	work.Wait()
	resp := &gatewayv1.ListBoxesResponse{}
	for _, m := range all {
		if m != nil {
			resp.Boxes = append(resp.Boxes, m)
		}
	}
	return resp, nil
}

func (s *service) StartBox(ctx context.Context, r *gatewayv1.StartBoxRequest) (*gatewayv1.StartBoxResponse, error) {
	b, err := s.find(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	if err := b.Start(ctx); err != nil {
		return nil, err
	}
	m, err := s.box(ctx, b)
	return &gatewayv1.StartBoxResponse{Box: m}, err
}

func (s *service) StopBox(ctx context.Context, r *gatewayv1.StopBoxRequest) (*gatewayv1.StopBoxResponse, error) {
	b, err := s.find(ctx, r.GetId())
	if err != nil {
		return nil, err
	}
	if err := b.Stop(ctx); err != nil {
		return nil, err
	}
	m, err := s.box(ctx, b)
	return &gatewayv1.StopBoxResponse{Box: m}, err
}

func (s *service) RemoveBox(ctx context.Context, r *gatewayv1.RemoveBoxRequest) (*gatewayv1.RemoveBoxResponse, error) {
	if err := workspace.CheckID(r.GetId()); err != nil {
		return nil, err
	}
	return &gatewayv1.RemoveBoxResponse{}, s.g.manager.Remove(ctx, r.GetId())
}

func (s *service) GetPath(ctx context.Context, r *gatewayv1.GetPathRequest) (*gatewayv1.GetPathResponse, error) {
	id := r.GetId()
	if err := workspace.CheckID(id); err != nil {
		return nil, err
	}
	if path, ok := s.g.manager.Path(id); ok {
		return &gatewayv1.GetPathResponse{Path: path}, nil
	}
	_, err := s.g.manager.Get(ctx, id)
	if errors.Is(err, core.ErrNotFound) {
		_, err = s.g.workspaces.Get(ctx, core.WorkspaceID(id))
	}
	switch {
	case errors.Is(err, core.ErrNotFound):
		return nil, fmt.Errorf("%w: no box and no workspace is named %s", core.ErrNotFound, id)
	case err != nil:
		return nil, err
	}
	return nil, fmt.Errorf("%w: the files of %s are not mounted now; `sbgw status` tells why", core.ErrUnavailable, id)
}
