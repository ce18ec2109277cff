package gateway

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/procstream"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

type execStream = grpc.BidiStreamingServer[gatewayv1.ExecRequest, gatewayv1.ExecResponse]

func (s *service) Exec(stream execStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	begin := first.GetBegin()
	if begin == nil {
		return core.Invalid("exec: the first message is not begin")
	}
	b, err := s.find(stream.Context(), begin.GetBox())
	if err != nil {
		return err
	}
	p, err := b.Process(stream.Context(), begin.GetCmd(), execOptions(begin)...)
	if err != nil {
		return err
	}
	if t := begin.GetTimeout().AsDuration(); t > 0 {
		limited := &limitedProcess{Process: p}
		timer := time.AfterFunc(t, limited.end)
		defer timer.Stop()
		p = limited
	}
	err = procstream.Serve(stream.Context(), p, execConn{stream})
	if errors.Is(err, procstream.ErrLost) {
		return context.Cause(stream.Context())
	}
	return err
}

func execOptions(m *gatewayv1.ExecBegin) []core.ExecOption {
	opts := []core.ExecOption{core.WithWorkDir(m.GetDir()), core.WithEnv(m.GetEnv()), core.WithUser(m.GetUser())}
	if m.GetTty() {
		opts = append(opts, core.WithTTY(core.WindowSize{Rows: uint16(m.GetRows()), Cols: uint16(m.GetCols())}))
	}
	if m.GetStdin() {
		opts = append(opts, core.WithOpenStdin())
	}
	if m.GetNoBarrier() {
		opts = append(opts, core.WithNoBarrier())
	}
	return opts
}

// limitedProcess is a process with a time limit.
type limitedProcess struct {
	core.Process
	over atomic.Bool
}

func (p *limitedProcess) end() {
	p.over.Store(true)
	p.Signal(int(syscall.SIGKILL), true)
}

// Wait returns context.DeadlineExceeded beside the exit of a process that was
// ended by the limit.
func (p *limitedProcess) Wait() (core.ExecExit, error) {
	exit, err := p.Process.Wait()
	if err == nil && p.over.Load() {
		err = context.DeadlineExceeded
	}
	return exit, err
}

// execConn is an Exec stream as procstream sees it.
type execConn struct{ execStream }

func (e execConn) Send(m *boxv1.ExecOutput) error {
	return e.execStream.Send(&gatewayv1.ExecResponse{Output: m})
}

func (e execConn) Recv() (*boxv1.ExecInput, error) {
	m, err := e.execStream.Recv()
	return m.GetInput(), err
}
