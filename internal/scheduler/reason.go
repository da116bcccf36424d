package scheduler

import (
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// The codes of a Reason that placement gives; those of queues are share's.
const (
	NotEnoughResources = "NotEnoughResources"
	Unschedulable      = "Unschedulable"
)

// key tells reasons apart: the same cause has the same key.
func (r *Reason) key() string { return r.Code + ": " + r.Message }

func shortageReason(s *place.Shortage, e *entry) Reason {
	code := NotEnoughResources
	if s.Resource == "" && s.CPUs == "" || s.Never {
		code = Unschedulable
	}
	return Reason{Code: code, Message: s.Stable(), Detail: s.Detail(), Shortage: s, Partial: e.partial}
}

func refusalReason(r *share.Refusal, e *entry) Reason {
	return Reason{Code: r.Code, Message: r.Stable(), Detail: r.Detail(), Partial: e.partial}
}
