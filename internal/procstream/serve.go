package procstream

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// ServerConn is the end of a message pair that the process is on. Send is called
// by one goroutine at a time, Recv by one.
type ServerConn interface {
	Send(*boxv1.ExecOutput) error
	Recv() (*boxv1.ExecInput, error)
}

// Serve carries a process over a connection until it ended and all of its output
// was sent. If the connection is lost first, Serve ends the process's standard
// input, reads its output to the end so that it is not held up, and returns
// ErrLost when the process ended; nothing is killed. An error of Wait beside an
// exit travels with it; one without is returned, to be told as the stream's
// error. Serve closes p. The caller closes c after it: that ends the goroutine
// that receives.
func Serve(ctx context.Context, p core.Process, c ServerConn) error {
	s := &server{proc: p, conn: c, stdout: newWindow(Window), stderr: newWindow(Window), stdin: newQueue(Window)}
	s.send(&boxv1.ExecOutput{Payload: &boxv1.ExecOutput_Started{Started: &boxv1.ExecStarted{}}})
	go s.receive()
	var feeder sync.WaitGroup
	feeder.Go(s.feed)
	defer feeder.Wait()
	defer p.Close()
	defer s.stdin.close(io.ErrClosedPipe)
	stop := context.AfterFunc(ctx, s.lose)
	defer stop()

	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		var both sync.WaitGroup
		both.Go(func() { s.pump(p.Stdout(), s.stdout, stdoutMsg, stdoutEOF) })
		both.Go(func() { s.pump(p.Stderr(), s.stderr, stderrMsg, stderrEOF) })
		both.Wait()
	}()
	exit, err := p.Wait()
	if err != nil && exit == (core.ExecExit{}) {
		return s.abort(err, pumped)
	}
	s.send(&boxv1.ExecOutput{Payload: &boxv1.ExecOutput_Exit{Exit: boxpb.FromExit(exit, err)}})
	<-pumped
	if s.lost.Load() {
		return ErrLost
	}
	return nil
}

// abortDrain is how long output that was read already may take to be sent after
// a process was lost from sight.
const abortDrain = 2 * time.Second

// abort ends the pumps of a process that is lost from sight.
func (s *server) abort(err error, pumped <-chan struct{}) error {
	select {
	case <-pumped:
	case <-time.After(abortDrain):
		s.lose()
		s.proc.Close()
		<-pumped
	}
	return err
}

// ErrLost: the connection went before everything could be told.
var ErrLost = errors.New("connection lost")

type server struct {
	proc           core.Process
	conn           ServerConn
	stdout, stderr *window
	stdin          *queue
	lost           atomic.Bool

	mu sync.Mutex // one Send at a time
}

func (s *server) send(m *boxv1.ExecOutput) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lost.Load() && s.conn.Send(m) != nil {
		s.lose()
	}
}

// lose is what happens when the other side is gone: input ends, output flows
// into nothing.
func (s *server) lose() {
	if s.lost.Swap(true) {
		return
	}
	s.stdin.close(io.EOF)
	s.stdout.unlimit()
	s.stderr.unlimit()
}

// receive applies what the other side sends until it is gone.
func (s *server) receive() {
	defer s.lose()
	for {
		m, err := s.conn.Recv()
		if err != nil {
			return
		}
		switch v := m.Payload.(type) {
		case *boxv1.ExecInput_Stdin:
			if !s.stdin.put(v.Stdin) {
				return // more than its credit
			}
		case *boxv1.ExecInput_StdinEof:
			s.stdin.close(io.EOF)
		case *boxv1.ExecInput_Resize:
			s.proc.Resize(core.WindowSize{Rows: uint16(v.Resize.GetRows()), Cols: uint16(v.Resize.GetCols())})
		case *boxv1.ExecInput_Signal:
			s.proc.Signal(int(v.Signal.GetNumber()), v.Signal.GetGroup())
		case *boxv1.ExecInput_Credit:
			s.stdout.add(int(v.Credit.GetStdout()))
			s.stderr.add(int(v.Credit.GetStderr()))
		}
	}
}

// feed writes standard input at the process's pace, so that one that does not
// read never holds up a signal.
func (s *server) feed() {
	w := s.proc.Stdin()
	defer w.Close()
	buf := make([]byte, chunk)
	for {
		n, err := s.stdin.read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				// The process does not want more: let the sender go on into nothing.
				s.stdin.discard()
			}
			s.send(&boxv1.ExecOutput{Payload: &boxv1.ExecOutput_Credit{Credit: &boxv1.Credit{Stdin: uint32(n)}}})
		}
		if err != nil {
			return
		}
	}
}

// pump sends one output stream within its credit.
func (s *server) pump(r io.Reader, w *window, msg func([]byte) *boxv1.ExecOutput, eof *boxv1.ExecOutput) {
	buf := make([]byte, chunk)
	for {
		limit := w.take(len(buf))
		n, err := r.Read(buf[:limit])
		w.add(limit - n)
		if n > 0 {
			s.send(msg(append([]byte(nil), buf[:n]...)))
		}
		if err != nil {
			s.send(eof)
			return
		}
	}
}

func stdoutMsg(b []byte) *boxv1.ExecOutput {
	return &boxv1.ExecOutput{Payload: &boxv1.ExecOutput_Stdout{Stdout: b}}
}

func stderrMsg(b []byte) *boxv1.ExecOutput {
	return &boxv1.ExecOutput{Payload: &boxv1.ExecOutput_Stderr{Stderr: b}}
}

var (
	stdoutEOF = &boxv1.ExecOutput{Payload: &boxv1.ExecOutput_StdoutEof{StdoutEof: true}}
	stderrEOF = &boxv1.ExecOutput{Payload: &boxv1.ExecOutput_StderrEof{StderrEof: true}}
)
