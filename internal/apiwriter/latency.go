package apiwriter

import (
	"math"
	"time"
)

// latency is a moving average of how long writes of the classes before ClassStart take, from the
// call to the answer, in seconds. The average decays while nothing is written.
type latency struct {
	seconds float64
	at      time.Time
}

const (
	// latencyWeight is the weight of the latest write in the average.
	latencyWeight = 1.0 / 16
	// latencyHalfLife is the time in which the average falls by half while nothing is written.
	latencyHalfLife = time.Second
)

func (l *latency) now(now time.Time) float64 {
	return l.seconds * math.Exp2(-float64(max(0, now.Sub(l.at)))/float64(latencyHalfLife))
}

func (l *latency) ended(now time.Time, took time.Duration) {
	before := l.now(now)
	l.seconds, l.at = before+latencyWeight*(took.Seconds()-before), now
}

// Latency implements Writer.
func (w *core) Latency() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.latency.now(time.Now()) * float64(time.Second))
}
