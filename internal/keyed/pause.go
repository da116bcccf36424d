package keyed

import "time"

// Bounds of a pause. pauseMax is also the time after the end of a pause when earlier refusals are
// forgotten.
const (
	pauseMin = time.Second
	pauseMax = 5 * time.Minute
)

// Pause delays further writes after the API server has refused one: an immediate retry would not
// help, and a turn that retries immediately would wake itself forever. The zero value is no pause.
// A Pause belongs to a record, and is used by its turns only.
type Pause struct {
	until time.Time
	times int
}

// Refused begins a pause that is twice as long as the one before. During a pause it does nothing,
// so that the refusals of one burst of writes count once.
func (p *Pause) Refused(now time.Time) {
	if p.until.After(now) {
		return
	}
	if now.Sub(p.until) > pauseMax {
		p.times = 0
	}
	p.until = now.Add(min(pauseMax, pauseMin<<min(p.times, 9)))
	p.times++
}

// Left returns the remaining time of the pause; it is not positive if the pause is over.
func (p *Pause) Left(now time.Time) time.Duration { return p.until.Sub(now) }

// Refusals holds writes that the API server refused, by subject. They are retried together after a
// Pause. The zero value is empty. A Refusals belongs to a record, and is used by its turns only.
type Refusals[K comparable, V any] struct {
	writes map[K]V
	pause  Pause
}

// Add adds a refused write.
func (r *Refusals[K, V]) Add(now time.Time, about K, write V) {
	if r.writes == nil {
		r.writes = map[K]V{}
	}
	r.writes[about] = write
	r.pause.Refused(now)
}

// Due removes and returns the writes if the pause is over. Otherwise it returns none, and the
// remaining time of the pause. Without writes, left is 0.
func (r *Refusals[K, V]) Due(now time.Time) (writes map[K]V, left time.Duration) {
	if len(r.writes) == 0 {
		return nil, 0
	}
	if left := r.pause.Left(now); left > 0 {
		return nil, left
	}
	writes, r.writes = r.writes, nil
	return writes, 0
}
