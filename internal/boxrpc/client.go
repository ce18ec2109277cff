package boxrpc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/procstream"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// Backend is a pool at the other end of a connection. It has a method for every
// ability; core.Has tells which the other end declares.
type Backend struct {
	c      boxv1.BoxServiceClient
	pool   string
	broken error
}

var (
	_ core.Backend       = (*Backend)(nil)
	_ core.Execer        = (*Backend)(nil)
	_ core.VolumeOpener  = (*Backend)(nil)
	_ core.VolumeRemover = (*Backend)(nil)
)

// New returns the pool at the other end of conn. A transport that breaks is an
// error of kind broken: core.ErrPluginGone or core.ErrUnavailable.
func New(conn grpc.ClientConnInterface, pool core.PoolName, broken error) *Backend {
	return &Backend{c: boxv1.NewBoxServiceClient(conn), pool: string(pool), broken: broken}
}

func (b *Backend) err(err error) error { return grpcerr.From(err, b.broken) }

// Describe implements core.Backend.
func (b *Backend) Describe(ctx context.Context) (core.BackendInfo, error) {
	m, err := b.c.Describe(ctx, &boxv1.DescribeRequest{Pool: b.pool})
	if err != nil {
		return core.BackendInfo{}, b.err(err)
	}
	info := core.BackendInfo{
		Node: m.GetNode(), Runtime: m.GetRuntime(), RuntimeVersion: m.GetRuntimeVersion(),
		OS: m.GetOs(), Arch: m.GetArch(), Network: m.GetNetwork(),
	}
	for _, a := range m.GetAbilities() {
		info.Abilities = append(info.Abilities, core.Ability(a))
	}
	return info, nil
}

// Create implements core.Backend.
func (b *Backend) Create(ctx context.Context, s core.BoxSpec) (core.BoxState, error) {
	m, err := b.c.Create(ctx, &boxv1.CreateRequest{Pool: b.pool, Spec: boxpb.FromSpec(s)})
	return boxpb.ToState(m.GetState()), b.err(err)
}

// Start implements core.Backend.
func (b *Backend) Start(ctx context.Context, r core.BoxRef) (core.BoxState, error) {
	m, err := b.c.Start(ctx, &boxv1.StartRequest{Pool: b.pool, Box: boxpb.FromRef(r)})
	return boxpb.ToState(m.GetState()), b.err(err)
}

// Stop implements core.Backend.
func (b *Backend) Stop(ctx context.Context, r core.BoxRef, grace time.Duration) (core.BoxState, error) {
	m, err := b.c.Stop(ctx, &boxv1.StopRequest{Pool: b.pool, Box: boxpb.FromRef(r), Grace: durationpb.New(grace)})
	return boxpb.ToState(m.GetState()), b.err(err)
}

// Remove implements core.Backend.
func (b *Backend) Remove(ctx context.Context, r core.BoxRef) error {
	_, err := b.c.Remove(ctx, &boxv1.RemoveRequest{Pool: b.pool, Box: boxpb.FromRef(r)})
	return b.err(err)
}

// Inspect implements core.Backend.
func (b *Backend) Inspect(ctx context.Context, id core.BoxID) (core.BoxState, error) {
	m, err := b.c.Inspect(ctx, &boxv1.InspectRequest{Pool: b.pool, Id: string(id)})
	return boxpb.ToState(m.GetState()), b.err(err)
}

// List implements core.Backend.
func (b *Backend) List(ctx context.Context) ([]core.BoxState, error) {
	m, err := b.c.List(ctx, &boxv1.ListRequest{Pool: b.pool})
	if err != nil {
		return nil, b.err(err)
	}
	states := make([]core.BoxState, len(m.GetStates()))
	for i, st := range m.GetStates() {
		states[i] = boxpb.ToState(st)
	}
	return states, nil
}

// Watch implements core.Backend.
func (b *Backend) Watch(ctx context.Context, from core.Cursor, f func(core.BoxEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := b.c.Watch(ctx, &boxv1.WatchRequest{Pool: b.pool, Cursor: string(from)})
	if err != nil {
		return b.err(err)
	}
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return b.broken
		}
		if err != nil {
			return b.err(err)
		}
		e := core.BoxEvent{Cursor: core.Cursor(m.GetCursor()), Removed: core.BoxID(m.GetRemoved()), Synced: m.GetSynced()}
		if m.GetState() != nil {
			st := boxpb.ToState(m.GetState())
			e.State = &st
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// Exec implements core.Execer. It returns when the process runs.
func (b *Backend) Exec(ctx context.Context, r core.BoxRef, s core.ExecSpec) (core.Process, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel) // bounds the start only
	stream, err := b.c.Exec(life)
	if err != nil {
		stop()
		cancel()
		return nil, b.err(err)
	}
	begin := &boxv1.ExecBegin{Pool: b.pool, Box: boxpb.FromRef(r), Start: boxpb.FromExecSpec(s)}
	err = stream.Send(&boxv1.ExecRequest{Payload: &boxv1.ExecRequest_Begin{Begin: begin}})
	if err == nil || err == io.EOF { // the cause of io.EOF is Recv's to tell
		_, err = stream.Recv()
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return nil, b.err(err)
	}
	return procstream.NewProcess(execClient{stream, cancel}, b.lost), nil
}

// lost tells why an exec's stream ended before the exit.
func (b *Backend) lost(err error) error {
	if errors.Is(err, io.EOF) {
		return core.ErrExitUnknown
	}
	return b.err(err)
}

// execClient is an Exec stream as procstream sees it.
type execClient struct {
	grpc.BidiStreamingClient[boxv1.ExecRequest, boxv1.ExecResponse]
	cancel context.CancelFunc
}

func (e execClient) Send(m *boxv1.ExecInput) error {
	return e.BidiStreamingClient.Send(&boxv1.ExecRequest{Payload: &boxv1.ExecRequest_Input{Input: m}})
}

func (e execClient) Recv() (*boxv1.ExecOutput, error) {
	m, err := e.BidiStreamingClient.Recv()
	return m.GetOutput(), err
}

func (e execClient) Close() error {
	e.cancel()
	return nil
}

// OpenVolume implements core.VolumeOpener.
func (b *Backend) OpenVolume(ctx context.Context, s core.VolumeSession, create bool) (core.Endpoint, error) {
	m, err := b.c.OpenVolume(ctx, &boxv1.OpenVolumeRequest{Pool: b.pool, Session: string(s), Create: create})
	return boxpb.ToEndpoint(m.GetEndpoint()), b.err(err)
}

// RemoveVolume implements core.VolumeRemover.
func (b *Backend) RemoveVolume(ctx context.Context, s core.VolumeSession) error {
	_, err := b.c.RemoveVolume(ctx, &boxv1.RemoveVolumeRequest{Pool: b.pool, Session: string(s)})
	return b.err(err)
}
