package apiwriter

import "time"

// circuit is the state of a circuit breaker. While it is open, writes wait, and one at a time
// probes, at a growing interval, whether the server carries them out again.
type circuit struct {
	open           bool
	failed         int       // failures in a row; while open, failures of probes
	until          time.Time // no probe before this time
	opened, closed time.Time // when the circuit last opened and closed
}

const (
	// outageAfter is the number of failures in a row that open a circuit. A refused connection
	// opens W.outage at once.
	outageAfter = 4
	// outageMin and outageMax bound the interval between probes.
	outageMin = 50 * time.Millisecond
	outageMax = time.Second
	// recoveringTime is how long a circuit counts as recovering after it was closed.
	recoveringTime = 10 * time.Second
	// retryAfterMax limits the Retry-After of the server.
	retryAfterMax = 30 * time.Second
)

// trip opens the circuit. after is the server's Retry-After, or zero.
func (c *circuit) trip(after time.Duration, now time.Time) {
	*c = circuit{open: true, opened: now, closed: c.closed}
	c.wait(after, now)
}

// wait sets the time of the next probe, after one has failed.
func (c *circuit) wait(after time.Duration, now time.Time) {
	if now.Before(c.until) {
		return // an older write failed: no probe is in flight before until
	}
	c.failed++
	wait := backoffJitter(min(outageMin<<min(c.failed-1, 10), outageMax))
	c.until = now.Add(max(wait, min(after, retryAfterMax)))
}

// answered records an answer, and reports whether this closed the circuit.
func (c *circuit) answered(now time.Time) bool {
	c.failed = 0
	if !c.open {
		return false
	}
	c.open, c.closed = false, now
	return true
}

// recovering reports whether the circuit is open or was within recoveringTime.
func (c *circuit) recovering(now time.Time) bool {
	return c.open || !c.closed.IsZero() && now.Sub(c.closed) < recoveringTime
}
