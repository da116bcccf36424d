package controlloop

import (
	"cmp"
	"time"
)

// Backoff delays the next attempt after a failure: an immediate retry would not help, and a turn
// that retries immediately would wake itself forever. The zero value delays nothing and has the
// default bounds. The turns of a key use the Backoff of its record, or Loop.Retry. It is not safe
// for concurrent use.
type Backoff struct {
	// Min and Max bound the delay. Default: 1 s and 5 min. Max is also the time after the end of a
	// delay when earlier failures are forgotten.
	Min, Max time.Duration

	until time.Time
	times int
}

const (
	backoffMin = time.Second
	backoffMax = 5 * time.Minute
	// doublingsMax bounds how often the delay is doubled.
	doublingsMax = 16
)

// Failed begins a backoff that is twice as long as the one before. During a backoff it does
// nothing, so that the failures of one burst of writes count once.
func (b *Backoff) Failed(now time.Time) {
	if b.until.After(now) {
		return
	}
	least, most := cmp.Or(b.Min, backoffMin), cmp.Or(b.Max, backoffMax)
	if now.Sub(b.until) > most {
		b.times = 0
	}
	b.until = now.Add(min(most, least<<min(b.times, doublingsMax)))
	b.times++
}

// Succeeded ends a backoff and forgets the failures.
func (b *Backoff) Succeeded() { b.until, b.times = time.Time{}, 0 }

// Left returns the remaining time of the backoff; it is not positive if the backoff is over.
func (b *Backoff) Left(now time.Time) time.Duration { return b.until.Sub(now) }

// FailedWrites holds writes that failed, by subject. They are retried together after a backoff. The
// zero value is empty. A FailedWrites belongs to a record, and is used by its turns only.
type FailedWrites[K comparable, V any] struct {
	writes  map[K]V
	backoff Backoff
}

// AtLeast sets the shortest backoff.
func (f *FailedWrites[K, V]) AtLeast(d time.Duration) { f.backoff.Min = d }

// Add adds a failed write.
func (f *FailedWrites[K, V]) Add(now time.Time, about K, write V) {
	if f.writes == nil {
		f.writes = map[K]V{}
	}
	f.writes[about] = write
	f.backoff.Failed(now)
}

// Due removes and returns the writes if the backoff is over. Otherwise it returns none, and the
// remaining time of the backoff. Without writes, left is 0.
func (f *FailedWrites[K, V]) Due(now time.Time) (writes map[K]V, left time.Duration) {
	if len(f.writes) == 0 {
		return nil, 0
	}
	if left := f.backoff.Left(now); left > 0 {
		return nil, left
	}
	writes, f.writes = f.writes, nil
	return writes, 0
}
