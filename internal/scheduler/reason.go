package scheduler

import (
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// Codes of a Reason that come from placement. The codes that come from queues are in package share.
const (
	NotEnoughResources = "NotEnoughResources"
	Unschedulable      = "Unschedulable"
	WaitingForVolumes  = "WaitingForVolumes"
)

// key identifies the cause of the reason: equal causes have equal keys.
func (r *Reason) key() string { return r.Code + ": " + r.Message + "; " + r.Eviction }

// explainEviction says who leaves for the gang, or why nobody does.
func (r *Reason) explainEviction(e explanation) { r.Eviction, r.EvictionDetail = e.stable, e.detail }

func shortageReason(s *place.Shortage, e *pendingGang) Reason {
	code := NotEnoughResources
	if s.Resource == "" && s.CPUs == "" || s.Never {
		code = Unschedulable
	}
	return Reason{Code: code, Message: s.Stable(), Detail: s.Detail(), Shortage: s, Partial: e.partial}
}

func refusalReason(r *share.Refusal, e *pendingGang) Reason {
	return Reason{Code: r.Code, Message: r.Stable(), Detail: r.Detail(), Partial: e.partial}
}
