package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// ExecOption changes how a command is run.
type ExecOption func(*execOptions)

type execOptions struct {
	dir, user string
	env       map[string]string
	timeout   time.Duration
	stdin     []byte
	openStdin bool
	tty       bool
	size      WindowSize
	noBarrier bool
}

// WithWorkDir runs the command in a directory of the box instead of its own.
func WithWorkDir(dir string) ExecOption { return func(o *execOptions) { o.dir = dir } }

// WithEnv adds variables to the box's environment.
func WithEnv(env map[string]string) ExecOption { return func(o *execOptions) { o.env = env } }

// WithTimeout kills the command's process group after a time.
func WithTimeout(timeout time.Duration) ExecOption {
	return func(o *execOptions) { o.timeout = timeout }
}

// WithUser runs the command as another user of the box: name or uid, with :group
// or :gid.
func WithUser(user string) ExecOption { return func(o *execOptions) { o.user = user } }

// WithStdin gives the command its standard input.
func WithStdin(data []byte) ExecOption { return func(o *execOptions) { o.stdin = data } }

// WithOpenStdin leaves a stream's standard input open until it is closed.
// Without it and WithStdin, a command reads end-of-file.
func WithOpenStdin() ExecOption { return func(o *execOptions) { o.openStdin = true } }

// WithTTY gives the command a terminal: one stream, in Stdout.
func WithTTY(size WindowSize) ExecOption {
	return func(o *execOptions) { o.tty, o.size = true, size }
}

// WithNoBarrier leaves out the ordering of file calls and this command, for
// callers that need none and want its time.
func WithNoBarrier() ExecOption { return func(o *execOptions) { o.noBarrier = true } }

// Process starts a command and returns it with nothing between. Everything
// written through mounts before the call is what the command sees; when Wait
// returns, everything the command wrote is what mounts show. If that can't be
// had within 30 s: before the command, it is not started and the error is
// ErrBarrier; after it, Wait returns the exit together with ErrBarrier. The
// context bounds the start; see Process for how it ends. The timeout option is
// the caller's to keep here.
func (b *Box) Process(ctx context.Context, cmd []string, opts ...ExecOption) (Process, error) {
	p, err := b.process(ctx, cmd, applied(opts))
	if err != nil {
		return nil, fmt.Errorf("exec in box %s: %w", b.r.ID, err)
	}
	return p, nil
}

func applied(opts []ExecOption) execOptions {
	var o execOptions
	for _, f := range opts {
		f(&o)
	}
	return o
}

func (b *Box) process(ctx context.Context, cmd []string, o execOptions) (*boxProcess, error) {
	if len(cmd) == 0 || cmd[0] == "" {
		return nil, Invalid("the command is empty")
	}
	if err := checkEnv(o.env); err != nil {
		return nil, err
	}
	be, err := b.backend()
	if err != nil {
		return nil, err
	}
	x, err := Has[Execer](ctx, be, AbilityExec)
	if err != nil {
		return nil, err
	}
	if !o.noBarrier {
		if err := b.m.settle(ctx, b.r); err != nil {
			return nil, err
		}
	}
	spec := ExecSpec{Cmd: cmd, Dir: o.dir, User: o.user, TTY: o.tty, Size: o.size, Stdin: o.openStdin || o.stdin != nil, NoEvent: o.noBarrier}
	for _, k := range slices.Sorted(maps.Keys(o.env)) {
		spec.Env = append(spec.Env, k+"="+o.env[k])
	}
	b.r.touch(+1)
	p, err := x.Exec(ctx, b.r.ref(), spec)
	if err != nil {
		b.r.touch(-1)
		return nil, err
	}
	bp := &boxProcess{Process: p, b: b, barrier: !o.noBarrier, ended: make(chan struct{})}
	b.m.work.Go(bp.follow)
	return bp, nil
}

// boxProcess is a process whose end is followed by the second half of the barrier.
type boxProcess struct {
	Process
	b       *Box
	barrier bool

	ended chan struct{} // exit and err are final
	exit  ExecExit
	err   error

	once sync.Once // the end of a oneshot box
}

// follow ends with the process, or with Close.
func (p *boxProcess) follow() {
	defer close(p.ended)
	stop := context.AfterFunc(p.b.m.life, func() { p.Process.Close() })
	defer stop()
	p.exit, p.err = p.Process.Wait()
	p.b.r.touch(-1)
	if p.err != nil || !p.barrier {
		return
	}
	p.err = p.b.m.refresh(p.b.m.life, p.b.r, p.exit.Event)
}

func (p *boxProcess) Wait() (ExecExit, error) {
	<-p.ended
	return p.exit, p.err
}

// Close lets go of the process. A box of policy oneshot goes with its command,
// if that has ended.
func (p *boxProcess) Close() error {
	err := p.Process.Close()
	<-p.ended
	if p.b.r.Policy == OneShot && p.exit != (ExecExit{}) {
		p.once.Do(p.b.removeSpent)
	}
	return err
}

// kill ends the process's group.
func (p *boxProcess) kill() { p.Signal(int(syscall.SIGKILL), true) }

// Exec runs a command to its end. A context that ends, or the timeout, kills its
// process group; the result then has what it had written, beside the context's
// error. A box of policy oneshot is removed after it.
func (b *Box) Exec(ctx context.Context, cmd []string, opts ...ExecOption) (*ExecResult, error) {
	o := applied(opts)
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	p, err := b.process(ctx, cmd, o)
	if err != nil {
		return nil, fmt.Errorf("exec in box %s: %w", b.r.ID, err)
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, p.kill)
	res, err := collect(p, o.stdin)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return res, fmt.Errorf("exec in box %s: %w", b.r.ID, err)
	}
	return res, nil
}

// collect feeds a process, reads what it writes, and waits. Without an exit
// there is no result.
func collect(p *boxProcess, stdin []byte) (*ExecResult, error) {
	var outs [2]bytes.Buffer
	var streams sync.WaitGroup
	for i, r := range []io.Reader{p.Stdout(), p.Stderr()} {
		streams.Go(func() { io.Copy(&outs[i], r) }) // how it broke is Wait's to tell
	}
	streams.Go(func() {
		p.Stdin().Write(stdin) // one that does not want it is no error
		p.Stdin().Close()
	})
	exit, err := p.Wait()
	if err != nil && exit == (ExecExit{}) {
		p.Close()
		streams.Wait()
		return nil, err
	}
	streams.Wait()
	return &ExecResult{ExitCode: exit.Code, Stdout: outs[0].String(), Stderr: outs[1].String()}, err
}

// removeSpent removes a oneshot box after its command.
func (b *Box) removeSpent() {
	ctx, cancel := context.WithTimeout(b.m.life, undoTime)
	defer cancel()
	if err := b.Remove(ctx); err != nil && !errors.Is(err, ErrNotFound) {
		b.m.log.Warn("remove a box after its one command", "box", b.r.ID, "err", err)
	}
}
