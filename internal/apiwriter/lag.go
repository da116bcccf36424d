package apiwriter

import (
	"math"
	"time"
)

// lag is a moving average of how long writes of the classes before ClassBegin take, from the call
// to the answer, in seconds. The average decays while nothing is written.
type lag struct {
	seconds float64
	at      time.Time
}

const (
	// lagWeight is the weight of the latest write in the average.
	lagWeight = 1.0 / 16
	// lagHalf is the time in which the average falls by half while nothing is written.
	lagHalf = time.Second
)

func (l *lag) now(now time.Time) float64 {
	return l.seconds * math.Exp2(-float64(max(0, now.Sub(l.at)))/float64(lagHalf))
}

func (l *lag) ended(now time.Time, took time.Duration) {
	before := l.now(now)
	l.seconds, l.at = before+lagWeight*(took.Seconds()-before), now
}

// Lag implements Writer.
func (w *W) Lag() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.lag.now(time.Now()) * float64(time.Second))
}
