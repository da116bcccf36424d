package clusters

import "time"

// The times of probes.
const (
	probeInterval = 5 * time.Second
	probeTimeout  = 3 * time.Second
	retryFirst    = time.Second
	retryMax      = 10 * time.Second
	// failuresToOpen is how many probes in a row fail before a cluster that was there is taken for unreachable.
	failuresToOpen = 2
)

// breaker says from probes whether a cluster can be reached. The zero value has not been told anything.
//
//	        ┌───────────────── success ──────────────────┐
//	        ▼                                            │
//	unknown / closed ── failuresToOpen failures ──▶ open ┘   (of an unknown one, the first failure opens)
type breaker struct {
	known    bool
	open     bool
	failures int
	since    time.Time // when it opened
	reason   error
}

// observe takes in the outcome of a probe. It says whether the breaker has turned.
func (b *breaker) observe(err error, now time.Time) (turned bool) {
	if err == nil {
		turned = b.open || !b.known
		*b = breaker{known: true}
		return turned
	}
	b.failures++
	if b.open || b.known && b.failures < failuresToOpen {
		if b.open {
			b.reason = err
		}
		return false
	}
	b.known, b.open, b.since, b.reason = true, true, now, err
	return true
}

// next is how long to wait before the next probe.
func (b *breaker) next() time.Duration {
	switch {
	case b.failures == 0:
		return probeInterval
	case !b.open:
		return retryFirst
	}
	return min(retryFirst<<min(b.failures-1, 10), retryMax)
}
