package podset

import (
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/controlloop"
)

// Refusal is the reason why the API server refused a write of an owner, and the pause before
// further writes: repeating the same write at once cannot succeed. The zero value is no refusal.
type Refusal struct {
	Reason, Message string
	controlloop.Backoff
}

// Note records a refusal and returns the time until the next attempt.
func (r *Refusal) Note(now time.Time, reason, message string) time.Duration {
	r.Failed(now)
	r.Reason, r.Message = reason, message
	return r.Left(now)
}

// Noted reports whether a write was refused.
func (r *Refusal) Noted() bool { return r.Message != "" }

// forbidsNode reports whether an error may come from a policy or webhook that forbids pods to name
// their node.
func forbidsNode(err error) bool {
	s := err.Error()
	return strings.Contains(s, "nodeName") || strings.Contains(s, "denied request") || strings.Contains(s, "denied the request")
}
