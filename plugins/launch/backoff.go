package launch

import (
	"math/rand/v2"
	"time"
)

// The delays between two starts grow from the first to the last by doubling. A
// plugin that was well for long enough begins anew. After so many failures in a
// row it is said to be in a crash loop, and the starts go on at the same pace.
const (
	firstDelay   = 100 * time.Millisecond
	lastDelay    = 30 * time.Second
	wellFor      = 60 * time.Second
	crashLoop    = 5
	killsFree    = 30
	delayJitter  = 0.2
	doublingsMax = 9 // 100 ms doubled nine times is over lastDelay
)

// backoff counts failures in a row, and apart from them the ends by a SIGKILL.
type backoff struct{ failures, kills int }

// ending is how a plugin process ended.
type ending struct {
	// ready is how long it was ready; zero: it never was.
	ready time.Duration
	// killed: by a SIGKILL that was not ours.
	killed bool
}

// next counts an ending and returns the delay before the next start. A plugin that
// was ready when somebody killed it did not fail: it starts again at once, unless
// that goes on and on, as when the kernel finds that it takes too much memory.
func (b *backoff) next(e ending) time.Duration {
	if e.ready >= wellFor {
		b.failures, b.kills = 0, 0
	}
	if e.killed && e.ready > 0 {
		b.kills++
		if b.kills <= killsFree {
			return jitter(firstDelay)
		}
	}
	b.failures++
	return jitter(min(firstDelay<<min(b.failures-1, doublingsMax), lastDelay))
}

// looping tells whether the plugin is in a crash loop.
func (b *backoff) looping() bool { return b.failures >= crashLoop }

// jitter spreads starts that would come at the same time.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - delayJitter + 2*delayJitter*rand.Float64()))
}
