package wire

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc"

	"github.com/yaoapp/sbgw/core"
	pluginv1 "github.com/yaoapp/sbgw/proto/sbgw/plugin/v1"
)

// Beats come a little faster than the two seconds promised. Each asks the pools
// how they are, without waiting for the answers: a stuck pool delays no beat,
// and is reported as not ready when it has not answered in time.
const (
	beatEvery    = time.Second
	probeTimeout = 5 * time.Second
)

// poolHealth is a pool's answer to a probe; without a reason it is ready.
type poolHealth struct {
	pool   core.PoolName
	reason string
}

// Health sends the state of every pool when it is first known, then each change,
// and beats. A pool is ready when it can describe itself.
func (s *server) Health(_ *pluginv1.HealthRequest, stream grpc.ServerStreamingServer[pluginv1.HealthResponse]) error {
	ctx := stream.Context()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	answers := make(chan poolHealth)
	asked := map[core.PoolName]bool{}  // a probe is under way
	sent := map[core.PoolName]string{} // what the client knows
	for {
		if err := stream.Send(&pluginv1.HealthResponse{}); err != nil {
			return err
		}
		s.probe(ctx, asked, answers)
		maps.DeleteFunc(sent, func(p core.PoolName, _ string) bool { return !asked[p] }) // closed pools
		for beat := false; !beat; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				beat = true
			case a := <-answers:
				asked[a.pool] = false
				if before, ok := sent[a.pool]; ok && before == a.reason {
					continue
				}
				sent[a.pool] = a.reason
				m := &pluginv1.HealthResponse{Pool: string(a.pool), Ready: a.reason == "", Reason: a.reason}
				if err := stream.Send(m); err != nil {
					return err
				}
			}
		}
	}
}

// probe asks every pool that is not being asked already. The answers come on the
// channel until the context ends.
func (s *server) probe(ctx context.Context, asked map[core.PoolName]bool, answers chan<- poolHealth) {
	s.mu.Lock()
	pools := maps.Clone(s.pools)
	s.mu.Unlock()

	for name, b := range pools {
		if asked[name] {
			continue
		}
		asked[name] = true
		go func() {
			probing, cancel := context.WithTimeout(ctx, probeTimeout)
			defer cancel()
			a := poolHealth{pool: name}
			if _, err := b.Describe(probing); err != nil {
				a.reason = err.Error()
			}
			select {
			case answers <- a:
			case <-ctx.Done():
			}
		}()
	}
}
