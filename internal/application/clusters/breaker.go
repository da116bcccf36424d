package clusters

import (
	"time"

	"lockstep.dev/lockstep/internal/controlloop"
)

// Intervals and timeouts of probes.
const (
	probeInterval = 5 * time.Second
	probeTimeout  = 3 * time.Second
	retryFirst    = time.Second
	retryMax      = 10 * time.Second
	// failuresToOpen is the number of failed probes in a row after which a reachable cluster counts
	// as unreachable.
	failuresToOpen = 2
)

// breaker decides from probes whether a cluster can be reached. The zero value is the state before
// the first probe.
//
//	        ┌───────────────── success ──────────────────┐
//	        ▼                                            │
//	unknown / closed ── failuresToOpen failures ──▶ open ┘   (from unknown, the first failure opens)
type breaker struct {
	known    bool
	open     bool
	failures int
	since    time.Time // when it opened
	reason   error
	backoff  controlloop.Backoff // between probes, after one that failed
}

// observe processes the outcome of a probe. It reports whether the breaker opened, closed, or
// became known.
func (b *breaker) observe(err error, now time.Time) (turned bool) {
	if err == nil {
		turned = b.open || !b.known
		*b = breaker{known: true}
		return turned
	}
	b.failures++
	b.backoff.Min, b.backoff.Max = retryFirst, retryMax
	b.backoff.Failed(now)
	if b.open || b.known && b.failures < failuresToOpen {
		if b.open {
			b.reason = err
		}
		return false
	}
	b.known, b.open, b.since, b.reason = true, true, now, err
	return true
}

// next returns the time to wait before the next probe.
func (b *breaker) next(now time.Time) time.Duration {
	if b.failures == 0 {
		return probeInterval
	}
	return b.backoff.Left(now)
}
