package launch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"

	"github.com/yaoapp/sbgw/plugins/wire"
)

// process is a plugin's operating-system process as go-plugin runs it: a group of
// its own, /dev/null as standard input, a pipe that tells it of our end, and
// nothing inherited but what is given here.
type process struct {
	path string
	log  *slog.Logger
	env  []string // set before Start

	cmd      *exec.Cmd // set by Start
	alive    *os.File  // our end of the pipe; closed, the plugin exits by itself
	greeting *greeting
	tail     *tail
	exited   chan struct{} // closed when the process was reaped
	readers  sync.WaitGroup

	mu     sync.Mutex
	pid    int  // 0: not started
	reaped bool // its number, and its group's, may be somebody else's now
	ours   bool // we killed it; one that was not started never will be
}

var _ runner.Runner = (*process)(nil)

func newProcess(path string, log *slog.Logger) *process {
	return &process{
		path: path, log: log,
		greeting: &greeting{}, tail: &tail{}, exited: make(chan struct{}),
	}
}

// pipes are a child's ends and ours of what it writes and of the life line.
type pipes struct{ outR, outW, errR, errW, aliveR, aliveW *os.File }

func newPipes() (p pipes, err error) {
	defer func() {
		if err != nil {
			p.close(p.outR, p.outW, p.errR, p.errW, p.aliveR, p.aliveW)
		}
	}()
	if p.outR, p.outW, err = os.Pipe(); err != nil {
		return p, err
	}
	if p.errR, p.errW, err = os.Pipe(); err != nil {
		return p, err
	}
	p.aliveR, p.aliveW, err = os.Pipe()
	return p, err
}

func (pipes) close(files ...*os.File) {
	for _, f := range files {
		f.Close() // a nil file says so and does nothing
	}
}

// Start implements runner.Runner.
func (p *process) Start(context.Context) error {
	pp, err := newPipes()
	if err != nil {
		return err
	}
	const lifeLine = 3 // the first of ExtraFiles
	p.cmd = exec.Command(p.path)
	p.cmd.Dir = "/"
	p.cmd.Env = append(p.env, wire.PipeVar+"="+strconv.Itoa(lifeLine))
	p.cmd.Stdout, p.cmd.Stderr = pp.outW, pp.errW
	p.cmd.ExtraFiles = []*os.File{pp.aliveR}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = p.launch()
	pp.close(pp.outW, pp.errW, pp.aliveR)
	if err != nil {
		pp.close(pp.outR, pp.errR, pp.aliveW)
		return err
	}
	p.greeting.r, p.alive = pp.outR, pp.aliveW
	p.readers.Go(func() { readLogs(pp.errR, p.log, p.tail) })
	go p.reap(pp)
	return nil
}

// launch starts the command unless Kill came first.
func (p *process) launch() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ours {
		return context.Canceled
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.pid = p.cmd.Process.Pid
	return nil
}

// lastWords is how long output is still read after the end of the process, whose
// children may have kept the pipes.
const lastWords = time.Second

// reap waits for the end of the process, and ends what is left of its group while
// the number is still its own.
func (p *process) reap(pp pipes) {
	for unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	p.mu.Lock()
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	p.reaped = true
	p.mu.Unlock()

	p.cmd.Wait()
	pp.outR.SetReadDeadline(time.Now().Add(lastWords))
	pp.errR.SetReadDeadline(time.Now().Add(lastWords))
	p.readers.Wait()
	pp.close(pp.errR, pp.aliveW)
	close(p.exited)
}

// letGo closes our end of the life line: a plugin exits by that.
func (p *process) letGo() { p.alive.Close() }

// Kill implements runner.Runner. It ends the whole group.
func (p *process) Kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return nil
	}
	p.ours = true
	if p.pid == 0 {
		return nil
	}
	return syscall.Kill(-p.pid, syscall.SIGKILL)
}

// Wait implements runner.Runner.
func (p *process) Wait(context.Context) error {
	<-p.exited
	return nil
}

// Stdout implements runner.Runner.
func (p *process) Stdout() io.ReadCloser { return p.greeting }

// Stderr implements runner.Runner. It is empty: readLogs has it.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(eof{}) }

// Name implements runner.Runner.
func (p *process) Name() string { return p.path }

// ID implements runner.Runner.
func (p *process) ID() string { return strconv.Itoa(p.number()) }

// number is the process's number, or 0 if it was not started.
func (p *process) number() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// Diagnose implements runner.Runner; why a start failed is told elsewhere.
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner: both are on this machine.
func (p *process) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

// HostToPlugin implements runner.Runner.
func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// killed tells whether an ended process was killed by somebody else, killedByUs
// whether it was by us.
func (p *process) killed() bool     { return p.sigkilled() && !p.wasOurs() }
func (p *process) killedByUs() bool { return p.sigkilled() && p.wasOurs() }

func (p *process) sigkilled() bool {
	st, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return st.Signaled() && st.Signal() == syscall.SIGKILL
}

func (p *process) wasOurs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ours
}

// end says how an ended process ended.
func (p *process) end() string {
	how := p.cmd.ProcessState.String() // "exit status 1", "signal: killed"
	if last := p.tail.String(); last != "" {
		return fmt.Sprintf("%s; its last words: %s", how, last)
	}
	return how
}

// eof is an empty stream.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// maxGreeting bounds the handshake line, which has a certificate in it.
const maxGreeting = 16 << 10

// greeting passes on the first line of a plugin's standard output, which is the
// handshake, and swallows the rest, so that nothing printed there by mistake
// ever blocks the plugin.
type greeting struct {
	r *os.File

	mu   sync.Mutex
	line []byte
	done bool
}

func (g *greeting) Read(b []byte) (int, error) {
	for {
		n, err := g.r.Read(b)
		keep, full := g.take(b[:n])
		if full && err == nil {
			err = io.EOF
		}
		if keep > 0 || err != nil {
			return keep, asEOF(err)
		}
	}
}

// asEOF hides the deadline that reap sets.
func asEOF(err error) error {
	if err == nil {
		return nil
	}
	return io.EOF
}

// take returns how much of b belongs to the line, and whether that is too much.
func (g *greeting) take(b []byte) (keep int, full bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done {
		return 0, false
	}
	for i, c := range b {
		if c == '\n' {
			g.done = true
			return i + 1, false
		}
		g.line = append(g.line, c)
	}
	return len(b), len(g.line) > maxGreeting
}

// String is what was said.
func (g *greeting) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return string(g.line)
}

// Close implements io.Closer.
func (g *greeting) Close() error { return g.r.Close() }
