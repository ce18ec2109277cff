// Package boxrpc carries core.Backend over gRPC as sbgw.box.v1.BoxService:
// Register on the side that has the backend, New on the side that uses it. A
// plugin process serves its pools by it, a node its own runtime.
package boxrpc

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/procstream"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// Register serves the backends that open returns by pool.
func Register(s grpc.ServiceRegistrar, open func(core.PoolName) (core.Backend, error)) {
	boxv1.RegisterBoxServiceServer(s, &server{open: open})
}

type server struct {
	boxv1.UnimplementedBoxServiceServer
	open func(core.PoolName) (core.Backend, error)
}

// state answers a call that returns a box's state.
func state[R any](st core.BoxState, err error, wrap func(*boxv1.BoxState) R) (R, error) {
	if err != nil {
		var none R
		return none, grpcerr.To(err)
	}
	return wrap(boxpb.FromState(st)), nil
}

func (s *server) Describe(ctx context.Context, r *boxv1.DescribeRequest) (*boxv1.DescribeResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	info, err := b.Describe(ctx)
	if err != nil {
		return nil, grpcerr.To(err)
	}
	m := &boxv1.DescribeResponse{
		Node: info.Node, Runtime: info.Runtime, RuntimeVersion: info.RuntimeVersion,
		Os: info.OS, Arch: info.Arch, Network: info.Network,
	}
	for _, a := range info.Abilities {
		m.Abilities = append(m.Abilities, string(a))
	}
	return m, nil
}

func (s *server) Create(ctx context.Context, r *boxv1.CreateRequest) (*boxv1.CreateResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	st, err := b.Create(ctx, boxpb.ToSpec(r.GetSpec()))
	return state(st, err, func(m *boxv1.BoxState) *boxv1.CreateResponse { return &boxv1.CreateResponse{State: m} })
}

func (s *server) Start(ctx context.Context, r *boxv1.StartRequest) (*boxv1.StartResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	st, err := b.Start(ctx, boxpb.ToRef(r.GetBox()))
	return state(st, err, func(m *boxv1.BoxState) *boxv1.StartResponse { return &boxv1.StartResponse{State: m} })
}

func (s *server) Stop(ctx context.Context, r *boxv1.StopRequest) (*boxv1.StopResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	st, err := b.Stop(ctx, boxpb.ToRef(r.GetBox()), r.GetGrace().AsDuration())
	return state(st, err, func(m *boxv1.BoxState) *boxv1.StopResponse { return &boxv1.StopResponse{State: m} })
}

func (s *server) Remove(ctx context.Context, r *boxv1.RemoveRequest) (*boxv1.RemoveResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err == nil {
		err = b.Remove(ctx, boxpb.ToRef(r.GetBox()))
	}
	return &boxv1.RemoveResponse{}, grpcerr.To(err)
}

func (s *server) Inspect(ctx context.Context, r *boxv1.InspectRequest) (*boxv1.InspectResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	st, err := b.Inspect(ctx, core.BoxID(r.GetId()))
	return state(st, err, func(m *boxv1.BoxState) *boxv1.InspectResponse { return &boxv1.InspectResponse{State: m} })
}

func (s *server) List(ctx context.Context, r *boxv1.ListRequest) (*boxv1.ListResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	states, err := b.List(ctx)
	if err != nil {
		return nil, grpcerr.To(err)
	}
	m := &boxv1.ListResponse{}
	for _, st := range states {
		m.States = append(m.States, boxpb.FromState(st))
	}
	return m, nil
}

func (s *server) Watch(r *boxv1.WatchRequest, stream grpc.ServerStreamingServer[boxv1.WatchResponse]) error {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return grpcerr.To(err)
	}
	err = b.Watch(stream.Context(), core.Cursor(r.GetCursor()), func(e core.BoxEvent) error {
		m := &boxv1.WatchResponse{Cursor: string(e.Cursor)}
		switch {
		case e.State != nil:
			m.Event = &boxv1.WatchResponse_State{State: boxpb.FromState(*e.State)}
		case e.Synced:
			m.Event = &boxv1.WatchResponse_Synced{Synced: true}
		default:
			m.Event = &boxv1.WatchResponse_Removed{Removed: string(e.Removed)}
		}
		return stream.Send(m)
	})
	return grpcerr.To(err)
}

func (s *server) Exec(stream grpc.BidiStreamingServer[boxv1.ExecRequest, boxv1.ExecResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	begin := first.GetBegin()
	if begin == nil {
		return grpcerr.To(core.Invalid("exec: the first message is not begin"))
	}
	b, err := s.open(core.PoolName(begin.GetPool()))
	if err != nil {
		return grpcerr.To(err)
	}
	x, err := core.Has[core.Execer](stream.Context(), b, core.AbilityExec)
	if err != nil {
		return grpcerr.To(err)
	}
	p, err := x.Exec(stream.Context(), boxpb.ToRef(begin.GetBox()), boxpb.ToExecSpec(begin.GetStart()))
	if err != nil {
		return grpcerr.To(err)
	}
	err = procstream.Serve(stream.Context(), p, execServer{stream})
	if errors.Is(err, procstream.ErrLost) {
		return nil
	}
	return grpcerr.To(err)
}

// execServer is an Exec stream as procstream sees it.
type execServer struct {
	grpc.BidiStreamingServer[boxv1.ExecRequest, boxv1.ExecResponse]
}

func (e execServer) Send(m *boxv1.ExecOutput) error {
	return e.BidiStreamingServer.Send(&boxv1.ExecResponse{Output: m})
}

func (e execServer) Recv() (*boxv1.ExecInput, error) {
	m, err := e.BidiStreamingServer.Recv()
	return m.GetInput(), err
}

func (s *server) OpenVolume(ctx context.Context, r *boxv1.OpenVolumeRequest) (*boxv1.OpenVolumeResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	v, err := core.Has[core.VolumeOpener](ctx, b, core.AbilityVolume)
	if err != nil {
		return nil, grpcerr.To(err)
	}
	e, err := v.OpenVolume(ctx, core.VolumeSession(r.GetSession()), r.GetCreate())
	if err != nil {
		return nil, grpcerr.To(err)
	}
	return &boxv1.OpenVolumeResponse{Endpoint: boxpb.FromEndpoint(e)}, nil
}

func (s *server) RemoveVolume(ctx context.Context, r *boxv1.RemoveVolumeRequest) (*boxv1.RemoveVolumeResponse, error) {
	b, err := s.open(core.PoolName(r.GetPool()))
	if err != nil {
		return nil, grpcerr.To(err)
	}
	v, err := core.Has[core.VolumeRemover](ctx, b, core.AbilityVolumeRemoval)
	if err == nil {
		err = v.RemoveVolume(ctx, core.VolumeSession(r.GetSession()))
	}
	return &boxv1.RemoveVolumeResponse{}, grpcerr.To(err)
}
