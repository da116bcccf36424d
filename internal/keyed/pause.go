package keyed

import "time"

// The bounds of a pause, and how long after one the server's refusals are forgotten.
const (
	pauseMin = time.Second
	pauseMax = 5 * time.Minute
)

// Pause holds writes back of which the API server has refused one: asking again at once would not cure that, and a turn that
// does so wakes itself for ever. Its zero value holds nothing back. It belongs to a record, and is for its turns.
type Pause struct {
	until time.Time
	times int
}

// Refused begins a pause that is twice as long as the one before. During one it changes nothing: answers to one burst of
// writes count once.
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

// Left is how long the pause still is, or not positive.
func (p *Pause) Left(now time.Time) time.Duration { return p.until.Sub(now) }

// Refusals are writes that the API server refused, by what they are about. They are made again together, after a Pause. The
// zero value has none. It belongs to a record, and is for its turns.
type Refusals[K comparable, V any] struct {
	writes map[K]V
	pause  Pause
}

// Add notes a refused write.
func (r *Refusals[K, V]) Add(now time.Time, about K, write V) {
	if r.writes == nil {
		r.writes = map[K]V{}
	}
	r.writes[about] = write
	r.pause.Refused(now)
}

// Due hands over the writes whose time has come, or none and how long the pause still is. Without writes it is zero.
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
