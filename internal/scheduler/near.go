package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

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
	e.near = s.located(e.gang.Near, e.mates)
	for i := range e.parts {
		e.parts[i].Near = s.located(e.parts[i].Near, e.parts[i].Mates)
	}
}

// located returns near with the nodes of the pods that have some.
func (s *Scheduler) located(near *place.Near, mates []types.NamespacedName) *place.Near {
	if near == nil {
		return nil
	}
	out := *near
	out.On = nil
	for _, name := range mates {
		if _, node := s.cluster.Pod(name); node != "" {
			out.On = append(out.On, node)
		}
	}
	slices.Sort(out.On)
	out.On = slices.Compact(out.On)
	return &out
}

// unitsOf returns the units that were placed, of some demands; nil means of all.
func (e *pendingGang) unitsOf(placed []Assignment, demands []int) (names []types.NamespacedName) {
	for _, a := range placed {
		if demands == nil || slices.Contains(demands, a.Demand) {
			names = append(names, e.gang.Demands[a.Demand].Units[a.Unit])
		}
	}
	return names
}

// partsLeft returns the parts that have units left after some were placed. The rest of a part that was
// placed is placed one by one.
func (e *pendingGang) partsLeft(placed []Assignment) []Part {
	var left []Part
	for _, part := range e.parts {
		if !slices.ContainsFunc(part.Demands, func(d int) bool { return len(e.left[d]) > 0 }) {
			continue
		}
		if units := e.unitsOf(placed, part.Demands); len(units) > 0 {
			part.Size, part.Mates = 1, slices.Concat(part.Mates, units)
		}
		left = append(left, part)
	}
	return left
}

// nearKey returns a string that is equal for gangs for which the same domains may do.
func (e *pendingGang) nearKey() string {
	var b strings.Builder
	mates := false
	write := func(near *place.Near, of []types.NamespacedName) {
		if near != nil {
			fmt.Fprintf(&b, " near %v %d %s", near.Hard, near.HighestTier, near.TierName)
			mates = mates || len(of) > 0
		}
	}
	write(e.gang.Near, e.mates)
	for i := range e.parts {
		part := &e.parts[i]
		fmt.Fprintf(&b, " part %s %v %d %d", part.Kind, part.Demands, part.Size, part.Set)
		write(part.Near, part.Mates)
	}
	if len(e.minParts) > 0 {
		fmt.Fprint(&b, " of ", e.minParts)
	}
	if mates {
		b.WriteString(" " + e.gang.Key) // it must be where its pods are
	}
	return b.String()
}

// isNear reports whether the network matters to the gang.
func (e *pendingGang) isNear() bool {
	return e.gang.Near != nil || slices.ContainsFunc(e.parts, func(part Part) bool { return part.Near != nil })
}

// LeastParts returns the number of units in the smallest parts that the gang needs.
func (g *Gang) LeastParts() (units int) {
	for set, least := range g.MinParts {
		var sizes []int
		for i := range g.Parts {
			if g.Parts[i].Set == set {
				sizes = append(sizes, g.Parts[i].Size)
			}
		}
		slices.Sort(sizes)
		for _, size := range sizes[:min(least, len(sizes))] {
			units += size
		}
	}
	return units
}
