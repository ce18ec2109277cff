package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/grpcerr"
	"github.com/yaoapp/sbgw/internal/procstream"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

// ExecOptions say how a command is run; the zero value is core's default.
type ExecOptions struct {
	Dir  string
	User string
	Env  map[string]string
	// Timeout kills the command's process group; its error is
	// context.DeadlineExceeded.
	Timeout time.Duration
	// Stdin is what the command reads, of Exec only.
	Stdin []byte
	// OpenStdin leaves standard input open until it is closed; otherwise the
	// command reads end-of-file.
	OpenStdin bool
	// TTY gives the command a terminal of this size.
	TTY *core.WindowSize
	// NoBarrier leaves out the ordering of file calls and the command.
	NoBarrier bool
}

// Process starts a command. The context bounds the start only. What core's
// Box.Process says of order holds: Wait may return an exit together with
// core.ErrBarrier, or with context.DeadlineExceeded after a time-out.
func (b *Box) Process(ctx context.Context, cmd []string, o ExecOptions) (core.Process, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	stream, err := b.c.api.Exec(life)
	if err == nil {
		err = begin(stream, b.execBegin(cmd, o))
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return nil, grpcerr.From(err)
	}
	return procstream.NewProcess(execConn{stream, cancel}, lost), nil
}

func (b *Box) execBegin(cmd []string, o ExecOptions) *gatewayv1.ExecBegin {
	m := &gatewayv1.ExecBegin{
		Box: b.ID(), Cmd: cmd, Env: o.Env, Dir: o.Dir, User: o.User, NoBarrier: o.NoBarrier,
		Stdin: o.OpenStdin || o.Stdin != nil,
	}
	if o.TTY != nil {
		m.Tty, m.Rows, m.Cols = true, uint32(o.TTY.Rows), uint32(o.TTY.Cols)
	}
	if o.Timeout > 0 {
		m.Timeout = durationpb.New(o.Timeout)
	}
	return m
}

// begin sends the first message and waits for the word that the process runs.
func begin(stream grpc.BidiStreamingClient[gatewayv1.ExecRequest, gatewayv1.ExecResponse], m *gatewayv1.ExecBegin) error {
	err := stream.Send(&gatewayv1.ExecRequest{Payload: &gatewayv1.ExecRequest_Begin{Begin: m}})
	if err == nil || errors.Is(err, io.EOF) { // why it ended is Recv's to tell
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("exec: %w: the gateway ended the stream", core.ErrUnavailable)
	}
	return err
}

// lost tells why an exec's stream ended before the exit.
func lost(err error) error {
	if errors.Is(err, io.EOF) {
		return core.ErrExitUnknown
	}
	return grpcerr.From(err)
}

// execConn is an Exec stream as procstream sees it.
type execConn struct {
	grpc.BidiStreamingClient[gatewayv1.ExecRequest, gatewayv1.ExecResponse]
	cancel context.CancelFunc
}

func (e execConn) Send(m *boxv1.ExecInput) error {
	return e.BidiStreamingClient.Send(&gatewayv1.ExecRequest{Payload: &gatewayv1.ExecRequest_Input{Input: m}})
}

func (e execConn) Recv() (*boxv1.ExecOutput, error) {
	m, err := e.BidiStreamingClient.Recv()
	return m.GetOutput(), err
}

func (e execConn) Close() error {
	e.cancel()
	return nil
}

// Exec runs a command to its end. A context that ends kills the command's process
// group. The result may come together with core.ErrBarrier or
// context.DeadlineExceeded.
func (b *Box) Exec(ctx context.Context, cmd []string, o ExecOptions) (*core.ExecResult, error) {
	p, err := b.Process(ctx, cmd, o)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Signal(int(syscall.SIGKILL), true) })
	var outs [2]bytes.Buffer
	var streams sync.WaitGroup
	for i, r := range []io.Reader{p.Stdout(), p.Stderr()} {
		streams.Go(func() { io.Copy(&outs[i], r) }) // how it broke is Wait's to tell
	}
	streams.Go(func() {
		p.Stdin().Write(o.Stdin) // a command that does not want it is no error
		p.Stdin().Close()
	})
	exit, err := p.Wait()
	if err != nil && exit == (core.ExecExit{}) {
		p.Close()
		streams.Wait()
		return nil, err
	}
	streams.Wait()
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &core.ExecResult{ExitCode: exit.Code, Stdout: outs[0].String(), Stderr: outs[1].String()}, err
}

// Stream starts a command and returns its streams, which are to be read. A
// context that ends kills the command's process group.
func (b *Box) Stream(ctx context.Context, cmd []string, o ExecOptions) (*core.ExecStream, error) {
	p, err := b.Process(ctx, cmd, o)
	if err != nil {
		return nil, err
	}
	kill := func() { p.Signal(int(syscall.SIGKILL), true) }
	stop := context.AfterFunc(ctx, kill)
	var open sync.WaitGroup
	open.Add(2)
	go func() { // ends with the stream, at the latest with the connection
		p.Wait()
		stop()
		open.Wait()
		p.Close()
	}()
	return &core.ExecStream{
		Stdout: &execOutput{r: p.Stdout(), done: open.Done}, Stderr: &execOutput{r: p.Stderr(), done: open.Done},
		Stdin: p.Stdin(), Cancel: kill, Resize: p.Resize,
		Wait: func() (int, error) {
			exit, err := p.Wait()
			return exit.Code, err
		},
	}, nil
}

// execOutput tells when its stream was read to the end, or let go.
type execOutput struct {
	r    io.Reader
	done func()
	once sync.Once
}

func (e *execOutput) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	if err != nil {
		e.once.Do(e.done)
	}
	return n, err
}

// Close lets go of the stream; its rest is discarded.
func (e *execOutput) Close() error {
	go io.Copy(io.Discard, e) // ends with the stream
	return nil
}
