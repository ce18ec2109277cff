package procstream

import (
	"io"
	"sync"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/boxpb"
	boxv1 "github.com/yaoapp/sbgw/proto/sbgw/box/v1"
)

// ClientConn is the end of a message pair that the process's user is on. Send
// and CloseSend are called by one goroutine at a time, Recv by one. Close ends
// the connection at once and may be called with the others running.
type ClientConn interface {
	Send(*boxv1.ExecInput) error
	Recv() (*boxv1.ExecOutput, error)
	CloseSend() error
	Close() error
}

// NewProcess returns the process at the other end of c. A connection that ends
// before the exit was told makes Wait return broken(err).
func NewProcess(c ClientConn, broken func(error) error) core.Process {
	p := &process{conn: c, broken: broken, ended: make(chan struct{}), received: make(chan struct{})}
	p.out = &output{p: p, q: newQueue(Window), credit: func(n uint32) *boxv1.Credit { return &boxv1.Credit{Stdout: n} }}
	p.errs = &output{p: p, q: newQueue(Window), credit: func(n uint32) *boxv1.Credit { return &boxv1.Credit{Stderr: n} }}
	p.in = &input{p: p, w: newWindow(Window)}
	go p.receive()
	return p
}

type process struct {
	conn     ClientConn
	broken   func(error) error
	in       *input
	out      *output
	errs     *output
	ended    chan struct{} // exit and err are final
	received chan struct{} // the receiving goroutine is gone

	exit core.ExecExit
	err  error

	mu sync.Mutex // one Send at a time
}

var _ core.Process = (*process)(nil)

func (p *process) Stdin() io.WriteCloser { return p.in }
func (p *process) Stdout() io.Reader     { return p.out }
func (p *process) Stderr() io.Reader     { return p.errs }

func (p *process) send(m *boxv1.ExecInput) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn.Send(m)
}

func (p *process) Resize(s core.WindowSize) error {
	r := &boxv1.Resize{Rows: uint32(s.Rows), Cols: uint32(s.Cols)}
	return p.send(&boxv1.ExecInput{Payload: &boxv1.ExecInput_Resize{Resize: r}})
}

func (p *process) Signal(sig int, group bool) error {
	s := &boxv1.Signal{Number: int32(sig), Group: group}
	return p.send(&boxv1.ExecInput{Payload: &boxv1.ExecInput_Signal{Signal: s}})
}

func (p *process) Wait() (core.ExecExit, error) {
	<-p.ended
	return p.exit, p.err
}

func (p *process) Close() error {
	err := p.conn.Close()
	<-p.received
	return err
}

// receive sorts what comes until the connection ends.
func (p *process) receive() {
	defer close(p.received)
	exited := false
	end := func(exit core.ExecExit, err error) {
		if !exited {
			exited = true
			p.exit, p.err = exit, err
			close(p.ended)
		}
	}
	for {
		m, err := p.conn.Recv()
		if err != nil {
			cause := p.broken(err)
			if exited && err == io.EOF {
				cause = io.EOF
			}
			end(core.ExecExit{}, cause)
			p.out.q.close(cause)
			p.errs.q.close(cause)
			p.in.w.unlimit()
			return
		}
		switch v := m.Payload.(type) {
		case *boxv1.ExecOutput_Stdout:
			p.out.q.put(v.Stdout)
		case *boxv1.ExecOutput_Stderr:
			p.errs.q.put(v.Stderr)
		case *boxv1.ExecOutput_StdoutEof:
			p.out.q.close(io.EOF)
		case *boxv1.ExecOutput_StderrEof:
			p.errs.q.close(io.EOF)
		case *boxv1.ExecOutput_Credit:
			p.in.w.add(int(v.Credit.GetStdin()))
		case *boxv1.ExecOutput_Exit:
			end(boxpb.ToExit(v.Exit))
		}
	}
}

// output is one of the process's output streams.
type output struct {
	p      *process
	q      *queue
	credit func(uint32) *boxv1.Credit
	owed   int // read, credit not given yet; of the one reader
}

func (o *output) Read(b []byte) (int, error) {
	n, err := o.q.read(b)
	o.owed += n
	if o.owed >= Window/4 {
		// A lost connection shows itself in the queue.
		o.p.send(&boxv1.ExecInput{Payload: &boxv1.ExecInput_Credit{Credit: o.credit(uint32(o.owed))}})
		o.owed = 0
	}
	return n, err
}

// input is the process's standard input.
type input struct {
	p    *process
	w    *window
	once sync.Once
}

func (i *input) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n := i.w.take(min(len(b)-done, chunk))
		m := &boxv1.ExecInput{Payload: &boxv1.ExecInput_Stdin{Stdin: b[done : done+n]}}
		if err := i.p.send(m); err != nil {
			return done, i.p.broken(err)
		}
		done += n
	}
	return done, nil
}

func (i *input) Close() error {
	var err error
	i.once.Do(func() {
		err = i.p.send(&boxv1.ExecInput{Payload: &boxv1.ExecInput_StdinEof{StdinEof: true}})
	})
	return err
}
