package tai

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	"github.com/yaoapp/sbgw/plugins/steady"
	"github.com/yaoapp/sbgw/tai"
)

// Between two starts of a node the delay doubles from the first to the last. One
// that lived for long enough begins anew; one that ended so many times in a row
// is said to keep ending.
const (
	firstDelay   = 50 * time.Millisecond
	lastDelay    = 5 * time.Second
	doublingsMax = 7
	wellFor      = 10 * time.Second
	crashLoop    = 8
)

// callPatience is how long a call waits for a node that is starting, lostPatience
// how long a call waits for the successor of a node that seemed lost: one that is
// still there is asked again.
const (
	callPatience = 10 * time.Second
	lostPatience = time.Second
)

// keeper keeps a node running and a client of it connected. It is the
// steady.Source of the pool's backend.
type keeper struct {
	pool   core.PoolName
	proc   *process
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	backend core.Backend  // nil: no node
	err     error         // why the last attempt failed; nil while one is under way
	changed chan struct{} // closed and renewed with every change
}

var _ steady.Source = (*keeper)(nil)

func newKeeper(pool core.PoolName, p *process, log *slog.Logger) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{pool: pool, proc: p, log: log, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{})}
	go k.run(ctx)
	return k
}

// stop lets go of the node.
func (k *keeper) stop() {
	k.cancel()
	<-k.done
}

func (k *keeper) set(b core.Backend, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.backend, k.err = b, err
	close(k.changed)
	k.changed = make(chan struct{})
}

// run finds or starts the node, again whenever it is gone.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	defer k.set(nil, fmt.Errorf("%w: pool %s was closed", core.ErrNotAvailable, k.pool))
	failures := 0
	for {
		k.set(nil, nil)
		began := time.Now()
		err := k.life(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil && time.Since(began) > wellFor {
			failures = 0
		}
		delay := min(firstDelay<<min(failures, doublingsMax), lastDelay)
		failures++
		if err == nil && failures >= crashLoop {
			err = k.proc.failed("keeps ending")
		}
		k.log.Warn("node does not run", logging.Err, err, "again_in", delay)
		k.set(nil, err) // callers of one that only just ended wait for its successor
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// life is one life of the node. It returns nil after the end of one that answered.
func (k *keeper) life(ctx context.Context) error {
	n, err := k.proc.ensure(ctx)
	if err != nil {
		return err
	}
	defer n.fd.Close()
	client, err := tai.Dial(k.proc.socket, tai.WithDialOptions(steady.DialOptions()...))
	if err != nil {
		return err
	}
	defer client.Close()
	b := client.Backend(k.pool)
	if err := k.greet(ctx, b); err != nil {
		return err
	}
	k.log.Info("node is ready", logging.PID, n.pid, logging.Path, k.proc.socket)
	k.set(b, nil)
	n.gone(ctx)
	return nil
}

// greet makes sure that what listens is a node.
func (k *keeper) greet(ctx context.Context, b core.Backend) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, err := b.Describe(ctx); err != nil {
		return k.proc.failed(fmt.Sprintf("at %s does not answer (%v)", k.proc.socket, err))
	}
	return nil
}

// Acquire implements steady.Source.
func (k *keeper) Acquire(ctx context.Context, after core.Backend) (core.Backend, error) {
	patience := callPatience
	if after != nil {
		patience = lostPatience
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		k.mu.Lock()
		b, err, changed := k.backend, k.err, k.changed
		k.mu.Unlock()

		if b != nil && b != after {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timeout.C:
			switch {
			case b != nil:
				return b, nil
			case after != nil:
				after = nil
				timeout.Reset(callPatience)
				continue
			}
			return nil, fmt.Errorf("%w: the node of pool %s is starting", core.ErrUnavailable, k.pool)
		}
	}
}

// Lost implements steady.Source. Nothing is to be done: the end of the process is
// watched.
func (k *keeper) Lost(core.Backend, error) {}
