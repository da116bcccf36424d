package fence

import (
	"sync/atomic"
	"time"
)

// Term is the time during which one holder has a lease. It is safe for concurrent use.
type Term struct {
	now   func() time.Time
	final bool
	until atomic.Int64 // nanoseconds since 1970 by the clock now; 0 before the first Extend
	ended atomic.Bool
}

// NewTerm returns a term that does not hold before it is extended. A final term ends when it
// lapses: for its lease, a later renewal does not prove that no other client acted meanwhile. now
// is the clock; nil means Now.
func NewTerm(final bool, now func() time.Time) *Term {
	if now == nil {
		now = Now
	}
	return &Term{now: now, final: final}
}

// Extend records that the lease was renewed and that the term holds until a time. A time before the
// present end has no effect. Extend reports whether the term holds now. A term that has ended is
// not extended.
func (t *Term) Extend(until time.Time) bool {
	if t.final && t.until.Load() != 0 && !t.Holds() {
		return false
	}
	for n := until.UnixNano(); ; {
		last := t.until.Load()
		if n <= last || t.until.CompareAndSwap(last, n) {
			return t.Holds()
		}
	}
}

// End ends the term.
func (t *Term) End() { t.ended.Store(true) }

// Holds reports whether the holder may act now.
func (t *Term) Holds() bool {
	if t.ended.Load() {
		return false
	}
	until := t.until.Load()
	if t.now().UnixNano() < until {
		return true
	}
	if t.final && until != 0 {
		t.End()
	}
	return false
}

// Ended reports whether the term will never hold again.
func (t *Term) Ended() bool { return !t.Holds() && t.ended.Load() }
