package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/tai/shim"
)

// barrierTimeout bounds how long an exit waits for the volume's watch.
const barrierTimeout = 30 * time.Second

// Exec is of core.Execer.
func (r *Runtime) Exec(ctx context.Context, ref core.BoxRef, s core.ExecSpec) (core.Process, error) {
	if err := checkExec(s); err != nil {
		return nil, err
	}
	r.mu.Lock()
	b := r.boxes[ref.ID]
	r.mu.Unlock()
	if b == nil {
		return nil, fmt.Errorf("%w: box %s", core.ErrNotFound, ref.ID)
	}
	if err := r.check(b, ref); err != nil {
		return nil, err
	}
	r.mu.Lock()
	running := b.status == core.StatusRunning
	r.mu.Unlock()
	if !running {
		return nil, fmt.Errorf("%w: box %s", core.ErrNotRunning, ref.ID)
	}
	inner, err := shim.Exec(ctx, b.dir, s)
	if err != nil {
		return nil, fmt.Errorf("box %s: %w", ref.ID, err)
	}
	p := &process{Process: inner, runtime: r}
	p.wait = sync.OnceValues(func() (core.ExecExit, error) { return r.finish(inner, b, s.NoEvent) })
	r.mu.Lock()
	r.execs[p] = struct{}{}
	r.mu.Unlock()
	if r.life.Err() != nil { // letGo may have been here already
		p.Close()
		return nil, errClosed
	}
	return p, nil
}

// process is a process whose exit tells how far the box's volume had come.
type process struct {
	core.Process
	runtime *Runtime
	wait    func() (core.ExecExit, error)
}

// Wait is of core.Process.
func (p *process) Wait() (core.ExecExit, error) { return p.wait() }

// Close is of core.Process.
func (p *process) Close() error {
	p.runtime.mu.Lock()
	delete(p.runtime.execs, p)
	p.runtime.mu.Unlock()
	return p.Process.Close()
}

// finish waits for a process and puts the volume's event beside its exit, if
// anybody needs it.
func (r *Runtime) finish(p core.Process, b *box, noEvent bool) (core.ExecExit, error) {
	exit, err := p.Wait()
	if err != nil || noEvent || len(b.Spec.Mounts) == 0 || r.volumes == nil {
		return exit, err
	}
	ctx, cancel := context.WithTimeout(r.life, barrierTimeout)
	defer cancel()
	exit.Event, err = r.volumes.Barrier(ctx, b.Spec.Mounts[0].Session)
	if err != nil {
		// Without an event whoever needs one asks the Volume server itself.
		r.log.Warn("barrier after exec", logging.Box, b.Spec.ID, logging.Err, err)
		exit.Event = core.Event{}
	}
	return exit, nil
}
