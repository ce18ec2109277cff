package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/plugins/wire"
)

// The states of a plugin.
const (
	Starting  = "starting"
	Ready     = "ready"
	Backoff   = "backoff"    // it ended; it will be started again in a moment
	CrashLoop = "crash-loop" // it keeps ending; it will be tried again, but not soon
	Stopped   = "stopped"
)

// State is what is known of a plugin.
type State struct {
	Kind    string
	Path    string
	PID     int // 0: no process
	Version string
	State   string
	// Reason says why it is not ready, or why it was started again last.
	Reason   string
	Restarts int
}

// supervisor keeps the process of one kind running until it is stopped.
type supervisor struct {
	kind   string
	o      Options
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{} // the loop has ended

	mu      sync.Mutex
	state   State
	inst    *instance     // nil unless ready
	retryAt time.Time     // when a start is due, in the states Backoff and CrashLoop
	changed chan struct{} // closed and renewed with every change
	pools   map[core.PoolName]*pool
}

func newSupervisor(kind string, o Options) *supervisor {
	ctx, cancel := context.WithCancel(context.Background())
	s := &supervisor{
		kind: kind, o: o, log: o.Log.With(logging.Plugin, kind), cancel: cancel,
		done: make(chan struct{}), state: State{Kind: kind, State: Starting},
		changed: make(chan struct{}), pools: map[core.PoolName]*pool{},
	}
	go s.run(ctx)
	return s
}

// stop ends the process and the loop, and waits for both.
func (s *supervisor) stop() {
	s.cancel()
	<-s.done
}

func (s *supervisor) snapshot() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// change makes a change of state known to whoever waits for one.
func (s *supervisor) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// run starts the process again and again.
func (s *supervisor) run(ctx context.Context) {
	defer close(s.done)
	defer s.change(func() { s.state.State, s.state.PID = Stopped, 0 })
	var b backoff
	for starts := 0; ; starts++ {
		s.change(func() { s.state.State, s.state.Restarts = Starting, starts })
		ended, err := s.life(ctx)
		if ctx.Err() != nil {
			return
		}
		delay := b.next(ended)
		s.change(func() {
			s.state.State, s.state.Reason, s.state.PID = Backoff, err.Error(), 0
			if b.looping() {
				s.state.State = CrashLoop
			}
			s.retryAt = time.Now().Add(delay)
		})
		s.log.Warn("plugin ended", logging.Reason, err, "again_in", delay, "failures", b.failures)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// life is one run of the plugin from start to end, and the reason of the end.
func (s *supervisor) life(ctx context.Context) (ending, error) {
	path, err := find(s.o.Dir, s.kind)
	if err != nil {
		return ending{}, err
	}
	i, err := start(ctx, s.kind, path, s.o)
	if err != nil {
		return ending{}, err
	}
	s.change(func() {
		s.inst = i
		s.state.State, s.state.Path, s.state.PID, s.state.Version = Ready, path, i.proc.number(), i.info.Version
		for _, p := range s.pools {
			s.openLocked(p)
		}
	})
	s.log.Info("plugin is ready", logging.PID, i.proc.number(), logging.Path, path, logging.Version, i.info.Version)
	err = i.watch(s.o.beatTimeout, s.beat)
	lived := time.Since(i.started)
	s.change(func() { s.inst = nil })
	i.stop()
	return ending{ready: lived, killed: i.proc.killed()}, err
}

// beat notes what the plugin tells of a pool, and opens those again that could
// not be opened.
func (s *supervisor) beat(b wire.Beat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pools[b.Pool]; p != nil {
		p.health = b.Reason
	}
	if b.Pool == "" && s.inst != nil {
		for _, p := range s.pools {
			s.openLocked(p)
		}
	}
}

// add puts a pool under the supervisor.
func (s *supervisor) add(p *pool) {
	s.change(func() { s.pools[p.cfg.Name] = p })
}

// remove takes a pool away and returns how many are left.
func (s *supervisor) remove(p *pool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pools, p.cfg.Name)
	return len(s.pools)
}

// forget tells the plugin that a pool was closed.
func (s *supervisor) forget(ctx context.Context, name core.PoolName) error {
	s.mu.Lock()
	i := s.inst
	s.mu.Unlock()

	if i == nil {
		return nil // the next one will not hear of the pool
	}
	err := i.driver.Close(ctx, name)
	if errors.Is(err, core.ErrPluginGone) {
		return nil
	}
	return err
}

// absence says why there is no process, and whether waiting is of use.
func (s *supervisor) absenceLocked() (err error, wait bool) {
	switch s.state.State {
	case Stopped:
		return fmt.Errorf("%w: plugin %s is stopped", core.ErrUnavailable, s.kind), false
	case CrashLoop:
		return fmt.Errorf("%w: plugin %s keeps failing: %s", core.ErrUnavailable, s.kind, s.state.Reason), false
	case Backoff:
		err = fmt.Errorf("%w: plugin %s ended: %s", core.ErrUnavailable, s.kind, s.state.Reason)
		return err, time.Until(s.retryAt) < callPatience
	}
	err = fmt.Errorf("%w: plugin %s is starting", core.ErrUnavailable, s.kind)
	if s.state.Reason != "" {
		err = fmt.Errorf("%w again after: %s", err, s.state.Reason)
	}
	return err, true
}
