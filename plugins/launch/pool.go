package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/plugins/steady"
)

// pool is a pool of a supervised plugin. It is the steady.Source of the backend
// that the launcher gives out.
type pool struct {
	sup     *supervisor
	cfg     core.PoolConfig
	backend *steady.Backend

	opening *opening // guarded by sup.mu; nil: never tried
	health  string   // guarded by sup.mu; why the plugin says it is not ready
}

var _ steady.Source = (*pool)(nil)

// opening is the pool being made ready in one instance.
type opening struct {
	inst *instance
	done chan struct{} // what follows is final
	at   time.Time
	b    core.Backend
	err  error
}

func (o *opening) isDone() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// reopenAfter is how long a failed opening stands before the next is tried.
const reopenAfter = 2 * time.Second

func newPool(s *supervisor, cfg core.PoolConfig) *pool {
	p := &pool{sup: s, cfg: cfg}
	p.backend = steady.New(p, core.ErrPluginGone)
	return p
}

// openLocked has the pool opened in the present instance unless it is, is about
// to be, or failed a moment ago, and returns that opening.
func (s *supervisor) openLocked(p *pool) *opening {
	o := p.opening
	if o != nil && o.inst == s.inst {
		if !o.isDone() || o.err == nil || time.Since(o.at) < reopenAfter {
			return o
		}
	}
	o = &opening{inst: s.inst, done: make(chan struct{})}
	p.opening, p.health = o, ""
	o.inst.work.Go(func() {
		ctx, cancel := context.WithTimeout(o.inst.life, openTimeout)
		defer cancel()
		o.b, o.err = o.inst.driver.Open(ctx, p.cfg)
		o.at = time.Now()
		close(o.done)
		if errors.Is(o.err, core.ErrPluginGone) {
			o.inst.fail(o.err)
		}
	})
	return o
}

// Acquire implements steady.Source.
func (p *pool) Acquire(ctx context.Context, after core.Backend) (core.Backend, error) {
	patience, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	for {
		o, changed, absence, wait := p.look()
		if o != nil {
			select {
			case <-o.done:
			case <-patience.Done():
				return nil, p.late(ctx, "it is being opened")
			}
			if o.err == nil && o.b != after {
				return o.b, nil
			}
			if o.err != nil && !errors.Is(o.err, core.ErrPluginGone) {
				return nil, o.err
			}
			absence, wait = fmt.Errorf("%w: plugin %s is gone", core.ErrUnavailable, p.sup.kind), true
		}
		if !wait {
			return nil, absence
		}
		select {
		case <-changed:
		case <-patience.Done():
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, absence
		}
	}
}

// look returns the opening in the present instance, or why there is none.
func (p *pool) look() (o *opening, changed chan struct{}, absence error, wait bool) {
	s := p.sup
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pools[p.cfg.Name] != p {
		return nil, nil, fmt.Errorf("%w: pool %s was closed", core.ErrNotAvailable, p.cfg.Name), false
	}
	if s.inst == nil {
		absence, wait = s.absenceLocked()
		return nil, s.changed, absence, wait
	}
	return s.openLocked(p), s.changed, nil, true
}

// late is the error of a caller whose patience ended.
func (p *pool) late(ctx context.Context, what string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: pool %s: %s", core.ErrUnavailable, p.cfg.Name, what)
}

// Lost implements steady.Source: a process whose connection broke is of no use,
// even if it is still there.
func (p *pool) Lost(b core.Backend, err error) {
	p.sup.mu.Lock()
	i := p.sup.inst
	lost := i != nil && p.opening != nil && p.opening.inst == i && p.opening.isDone() && p.opening.b == b
	p.sup.mu.Unlock()

	if lost {
		i.fail(err)
	}
}

// ready tells why the pool does not answer now, or nil.
func (s *supervisor) ready(p *pool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inst == nil {
		err, _ := s.absenceLocked()
		return err
	}
	o := p.opening
	switch {
	case o == nil || o.inst != s.inst || !o.isDone():
		return fmt.Errorf("%w: pool %s is being opened", core.ErrUnavailable, p.cfg.Name)
	case o.err != nil:
		return o.err
	case p.health != "":
		return fmt.Errorf("%w: pool %s: %s", core.ErrUnavailable, p.cfg.Name, p.health)
	}
	return nil
}
