package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/yaoapp/sbgw/core"
	"github.com/yaoapp/sbgw/internal/logging"
	gatewayv1 "github.com/yaoapp/sbgw/proto/sbgw/gateway/v1"
)

// Budgets of the end.
const (
	apiEnd  = 2 * time.Second  // calls in flight
	nodeEnd = 10 * time.Second // of a node that was told to end
)

// stopWorkers bounds how many boxes are stopped at a time.
const stopWorkers = 8

// Close ends the gateway: its API, then its plugins. Boxes, nodes, the mount
// process and the mounts go on and are found again. Closing again is success.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.stopping = true
	closed := g.closed
	g.closed = true
	g.mu.Unlock()
	if closed {
		<-g.done
		return nil
	}
	g.stopAPI()
	errs := []error{g.closeCore()}
	if g.mounts != nil {
		g.mounts.close()
	}
	g.work.Wait()
	if g.store != nil {
		errs = append(errs, g.store.Close())
	}
	if g.lock != nil {
		errs = append(errs, g.lock.Close())
	}
	close(g.done)
	select {
	case <-g.ready:
		g.log.Info("gateway ended")
	default: // it never was one
	}
	return errors.Join(errs...)
}

// stopAPI waits a moment for calls in flight, then ends them.
func (g *Gateway) stopAPI() {
	if g.server == nil {
		if g.listener != nil {
			g.listener.Close()
		}
		return
	}
	// GracefulStop returns when every handler has; those of commands that run
	// end with closeCore.
	stopped := make(chan struct{})
	g.work.Go(func() {
		defer close(stopped)
		g.server.GracefulStop()
	})
	select {
	case <-stopped:
	case <-time.After(apiEnd):
		g.server.Stop()
	}
}

// closeCore lets go of the pools and ends the plugins.
func (g *Gateway) closeCore() error {
	var err error
	if g.manager != nil {
		err = g.manager.Close()
	}
	if g.launcher != nil {
		g.launcher.Shutdown()
	}
	if g.volumes != nil {
		g.volumes.close()
	}
	return err
}

// Shutdown stops every box of the gateway's pools, takes the mounts down, and ends
// the mount process and the nodes that the pools started. Files stay. It returns
// the boxes it stopped; one that could not be stopped is part of the error and
// does not keep the rest from ending. Close follows it.
func (g *Gateway) Shutdown(ctx context.Context) ([]core.BoxID, error) {
	g.mu.Lock()
	stopping := g.stopping
	g.stopping = true
	g.mu.Unlock()
	if stopping {
		return nil, fmt.Errorf("%w: the gateway is shutting down already", core.ErrUnavailable)
	}
	stopped, err := g.stopBoxes(ctx)
	errs := []error{err, g.closeCore(), g.endNodes(ctx)}
	g.mounts.cancel()
	errs = append(errs, g.mounts.end(ctx))
	return stopped, errors.Join(errs...)
}

func (g *Gateway) stopBoxes(ctx context.Context) ([]core.BoxID, error) {
	boxes, err := g.manager.List(ctx, core.ListOptions{})
	if err != nil {
		return nil, err
	}
	var (
		mu      sync.Mutex
		stopped []core.BoxID
		errs    []error
		work    sync.WaitGroup
	)
	slots := make(chan struct{}, stopWorkers)
	for _, b := range boxes {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			did, err := stopBox(ctx, b)
			mu.Lock()
			defer mu.Unlock()
			if did {
				stopped = append(stopped, core.BoxID(b.ID()))
			}
			errs = append(errs, err)
		})
	}
	work.Wait()
	return stopped, errors.Join(errs...)
}

// stopBox stops a box that is not stopped. A mount that can't follow any more is
// no error: it goes away now.
func stopBox(ctx context.Context, b *core.Box) (did bool, err error) {
	info, err := b.Info(ctx)
	if errors.Is(err, core.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Status == string(core.StatusStopped) || info.Status == string(core.StatusCreated) {
		return false, nil
	}
	if err := b.Stop(ctx); err != nil && !errors.Is(err, core.ErrBarrier) {
		return false, err
	}
	return true, nil
}

// endNodes ends the nodes that pools keep in their state directories: each holds
// a lock on node.lock, with its pid inside.
func (g *Gateway) endNodes(ctx context.Context) error {
	locks, err := filepath.Glob(g.statePath("pools/*/node.lock"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range locks {
		if err := endNode(ctx, path); err != nil {
			errs = append(errs, fmt.Errorf("end node of pool %s: %w", filepath.Base(filepath.Dir(path)), err))
		}
	}
	return errors.Join(errs...)
}

func endNode(ctx context.Context, lock string) error {
	pid, err := lockedBy(lock)
	if err != nil || pid == 0 {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal pid %d: %w", pid, err)
	}
	if !waitDeadFor(ctx, pid, nodeEnd) {
		return fmt.Errorf("%w: pid %d is still there after %s", core.ErrUnavailable, pid, nodeEnd)
	}
	return nil
}

// lockedBy returns the process whose pid is in a lock file, 0 if nobody holds it.
func lockedBy(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, fmt.Errorf("look at lock %s: %w", path, err)
	}
	pid, err := strconv.Atoi(lockHolder(f))
	if err != nil {
		return 0, fmt.Errorf("%w: %s is locked, but has no pid in it", core.ErrInvalid, path)
	}
	return pid, nil
}

// Leftovers tells whether a mount process or a node of the state directory is
// running, with or without a gateway.
func Leftovers(c Config) bool {
	locks, _ := filepath.Glob(filepath.Join(c.Gateway.StateDir, "pools/*/node.lock"))
	for _, path := range locks {
		if pid, err := lockedBy(path); err == nil && pid != 0 {
			return true
		}
	}
	return answers(filepath.Join(c.Gateway.StateDir, "mountd.sock"))
}

func (s *service) Shutdown(ctx context.Context, r *gatewayv1.ShutdownRequest) (*gatewayv1.ShutdownResponse, error) {
	resp := &gatewayv1.ShutdownResponse{}
	var err error
	if r.GetStopBoxes() {
		var ids []core.BoxID
		ids, err = s.g.Shutdown(ctx)
		for _, id := range ids {
			resp.Stopped = append(resp.Stopped, string(id))
		}
	}
	if err != nil {
		s.g.log.Error("shut down", logging.Err, err)
	}
	// After the answer, which Close waits for.
	s.g.shutdownOnce.Do(func() { close(s.g.told) })
	return resp, err
}
