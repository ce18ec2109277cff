package volume

import (
	"context"
	"time"
)

// maxSweep is how many objects a barrier looks at one by one; with more in use,
// telling the sessions to drop everything is cheaper.
const maxSweep = 8192

// barrier returns the number of an event at or after every change that was
// complete before the call.
func (v *volume) barrier(ctx context.Context) (uint64, error) {
	if !v.watch.on {
		v.feed.append(event{lost: true})
		return v.feed.number(), nil
	}
	if err := v.watch.cookie(ctx.Done()); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, err
	}
	v.sweep()
	return v.feed.number(), nil
}

// sweep looks at every object whose attributes went out a short while ago, for
// changes that make no event: through another hard link, or through a mapping.
func (v *volume) sweep() {
	if v.watch.missed.Swap(false) {
		v.feed.append(event{lost: true})
		return
	}
	var recent []*object
	since := time.Now().Add(-recentFor)
	v.mu.Lock()
	for e := v.recent.Front(); e != nil && len(recent) <= maxSweep; e = e.Next() {
		o := e.Value.(*object)
		if o.given.Before(since) {
			break
		}
		o.users++
		recent = append(recent, o)
	}
	v.mu.Unlock()

	if len(recent) > maxSweep {
		v.feed.append(event{lost: true})
	}
	for _, o := range recent {
		if len(recent) <= maxSweep {
			v.check(o)
		}
		v.release(o)
	}
}
