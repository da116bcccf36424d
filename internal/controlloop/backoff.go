package controlloop

import "time"

// Bounds of a backoff. backoffMax is also the time after the end of a backoff when earlier failures
// are forgotten.
const (
	backoffMin = time.Second
	backoffMax = 5 * time.Minute
)

// Backoff delays the next attempt after a failure: an immediate retry would not help, and a turn
// that retries immediately would wake itself forever. The zero value delays nothing. A Backoff
// belongs to a record, and is used by its turns only.
type Backoff struct {
	until time.Time
	times int
}

// Failed begins a backoff that is twice as long as the one before. During a backoff it does
// nothing, so that the failures of one burst of writes count once.
func (b *Backoff) Failed(now time.Time) {
	if b.until.After(now) {
		return
	}
	if now.Sub(b.until) > backoffMax {
		b.times = 0
	}
	b.until = now.Add(min(backoffMax, backoffMin<<min(b.times, 9)))
	b.times++
}

// Left returns the remaining time of the backoff; it is not positive if the backoff is over.
func (b *Backoff) Left(now time.Time) time.Duration { return b.until.Sub(now) }

// FailedWrites holds writes that failed, by subject. They are retried together after a backoff. The
// zero value is empty. A FailedWrites belongs to a record, and is used by its turns only.
type FailedWrites[K comparable, V any] struct {
	writes  map[K]V
	backoff Backoff
}

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
