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
	delayJitter  = 0.2
	notItsFault  = time.Second
	doublingsMax = 9 // 100 ms doubled nine times is over lastDelay
)

// backoff counts failures in a row.
type backoff struct{ failures int }

// ending is how a plugin process ended.
type ending struct {
	// ready is how long it was ready; zero: it never was.
	ready time.Duration
	// killed: by a SIGKILL that was not ours.
	killed bool
}

// next counts an ending and returns the delay before the next start. One that was
// killed from outside after it was well for a moment is no failure of its own
// and starts again at once; had the kernel killed it for its memory it would
// hardly have become ready.
func (b *backoff) next(e ending) time.Duration {
	switch {
	case e.killed && e.ready >= notItsFault:
		return jitter(firstDelay)
	case e.ready >= wellFor:
		b.failures = 0
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
