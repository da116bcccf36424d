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
	switch {
	case s.Domain != nil && !s.Domain.Never(s.Wanted):
	case s.Resource == "" && s.CPUs == "" || s.Never:
		code = Unschedulable
	}
	r := Reason{Code: code, Message: s.Stable(), Detail: s.Detail(), Shortage: s, Partial: e.partial}
	if e.groups != nil && len(e.groups.required) > 0 {
		r.Message += "; " + e.groups.String()
		r.Detail += "; " + e.groups.String()
	}
	return r
}

func refusalReason(r *share.Refusal, e *pendingGang) Reason {
	return Reason{Code: r.Code, Message: r.Stable(), Detail: r.Detail(), Partial: e.partial}
}
