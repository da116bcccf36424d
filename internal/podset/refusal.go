package podset

import (
	"strings"
	"time"
)

// Bounds of the pause after a refusal.
const (
	RetryMin = time.Second
	retryMax = 5 * time.Minute
)

// Refusal is the reason why the API server refused a write of an owner, and the pause before
// further writes: repeating the same write at once cannot succeed. The zero value is no refusal.
type Refusal struct {
	Reason, Message string
	RetryAt         time.Time
	times           int
}

// Note notes a refusal and returns the time until the next attempt, which doubles with each
// refusal. The answers to one burst of writes count once.
func (r *Refusal) Note(now time.Time, reason, message string) time.Duration {
	if !r.RetryAt.After(now) {
		r.RetryAt = now.Add(min(retryMax, RetryMin<<min(r.times, 9)))
		r.times++
	}
	r.Reason, r.Message = reason, message
	return r.RetryAt.Sub(now)
}

// Noted reports whether a write was refused.
func (r *Refusal) Noted() bool { return r.Message != "" }

// forbidsNode reports whether an error may come from a policy or webhook that forbids pods to name
// their node.
func forbidsNode(err error) bool {
	s := err.Error()
	return strings.Contains(s, "nodeName") || strings.Contains(s, "denied request") || strings.Contains(s, "denied the request")
}
