package scheduler

import (
	"fmt"
	"slices"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// NearOf returns what a networkTopology asks of placement, or nil if it is nil. Without a tier, hard
// pods may be in one domain of any tier.
func NearOf(spec *schedulingv1beta1.NetworkTopologySpec) *place.Near {
	if spec == nil {
		return nil
	}
	near := &place.Near{Hard: spec.Mode != schedulingv1beta1.SoftNetworkTopology, HighestTier: place.AnyTier}
	if !near.Hard {
		return near
	}
	if tier := spec.HighestTierAllowed; tier != nil {
		near.HighestTier = *tier
	}
	near.TierName = spec.HighestTierName
	return near
}

// followNetwork makes placement use the domains of the network as they are now.
func (s *Scheduler) followNetwork() {
	if tree := s.cluster.Network(); tree != s.cfg.Place.Network {
		s.cfg.Place.Network = tree
		s.placer.SetNetwork(tree)
	}
}

// locate finds the nodes of the gang's pods that have some, for a gang that must be near them.
func (s *Scheduler) locate(e *pendingGang) {
	if e.near = nil; e.gang.Near == nil {
		return
	}
	near := *e.gang.Near
	near.On = nil
	for _, name := range e.mates {
		if _, node := s.cluster.Pod(name); node != "" {
			near.On = append(near.On, node)
		}
	}
	slices.Sort(near.On)
	near.On = slices.Compact(near.On)
	e.near = &near
}

// nearKey returns a string that is equal for gangs for which the same domains may do.
func (e *pendingGang) nearKey() string {
	near := e.gang.Near
	if near == nil {
		return ""
	}
	key := fmt.Sprintf("\nnear %v %d %s", near.Hard, near.HighestTier, near.TierName)
	if len(e.mates) > 0 {
		key += " " + e.gang.Key // it must be where its pods are
	}
	return key
}
