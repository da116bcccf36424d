// Package repack plans moves of pods within a node that free whole L3 domains for large pods. A move rewrites the CPU
// set of running containers; nobody is evicted.
//
//	used L3 domain with little in it ──▶ its pods fit idle CPUs of other used domains, no worse off? ──▶ moves
//
// Domains are tried emptiest first. A plan's moves go to CPUs that are idle before the plan starts, so they can be made
// in any order, one at a time, and the plan may be dropped half-way: every state in between is valid.
package repack

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Budget bounds a plan.
type Budget struct {
	// MovesMax is the largest number of pods moved; 0 is no limit.
	MovesMax int
	// MovedShareMax is how much may be moved for an L3 domain, as a share of its CPUs: above it, what is disturbed costs
	// more than what is won. 0 means a half.
	MovedShareMax float64
}

// Move gives a pod other CPUs on its node.
type Move struct {
	Pod      string
	From, To *allocate.Allocation
}

// Plan is moves and the L3 domains they free.
type Plan struct {
	Moves []Move
	Freed []cpuset.Set
}

// movedShareMax is the default of Budget.MovedShareMax.
const movedShareMax = 0.5

// Within plans moves on one node. request returns the request of a pod that may be moved, and nil for a pod that must
// stay. The node is not changed.
func Within(n *allocate.Node, request func(key string) *allocate.Request, budget Budget) Plan {
	share := budget.MovedShareMax
	if share == 0 {
		share = movedShareMax
	}
	var plan Plan
	var al allocate.Allocator
	state := n.Clone()
	tried := map[int]bool{} // L3 domains that failed: what is won elsewhere does not help them
	for {
		at, pods := emptiest(state, tried)
		if at < 0 {
			return plan
		}
		tried[at] = true
		domain := n.Layout().L3Domains()[at]
		moved := 0
		for _, p := range pods {
			moved += p.CPUs().Len()
		}
		if float64(moved) > share*float64(domain.Len()) {
			return plan // and so are all that follow
		}
		if budget.MovesMax > 0 && len(plan.Moves)+len(pods) > budget.MovesMax {
			continue
		}
		if moves, after := drain(&al, state, domain, pods, request); moves != nil {
			plan.Moves = append(plan.Moves, moves...)
			plan.Freed = append(plan.Freed, domain)
			state = after
		}
	}
}

// emptiest returns the L3 domain, not yet tried, with the fewest CPUs in use, and the pods in it; -1 if there is none.
// Domains in use by pods that also use others are left alone.
func emptiest(n *allocate.Node, tried map[int]bool) (int, []*allocate.Allocation) {
	domains := n.Layout().L3Domains()
	in := make([][]*allocate.Allocation, len(domains))
	used := make([]int, len(domains))
	for _, a := range n.Pods() {
		cpus := a.CPUs()
		for i, d := range domains {
			if part := cpus.Intersect(d).Len(); part > 0 {
				in[i] = append(in[i], a)
				used[i] += part
				if part < cpus.Len() {
					used[i] = d.Len() // larger than any that can be drained
				}
			}
		}
	}
	best := -1
	for i := range domains {
		if used[i] > 0 && used[i] < domains[i].Len() && !tried[i] && (best < 0 || used[i] < used[best]) {
			best = i
		}
	}
	if best < 0 {
		return -1, nil
	}
	return best, in[best]
}

// drain moves the pods of a domain into other used domains. It returns nil if one of them cannot be moved, or only for
// the worse.
func drain(al *allocate.Allocator, n *allocate.Node, domain cpuset.Set, pods []*allocate.Allocation, request func(string) *allocate.Request) ([]Move, *allocate.Node) {
	after := n.Clone()
	for _, p := range pods {
		after.Release(p.Key)
	}
	if !domain.SubsetOf(after.Idle()) {
		return nil, nil // someone else, or nobody's to give: it would not be free
	}
	// Idle domains stay idle, this one among them.
	const barrier = "\x00barrier"
	var blocked cpuset.Set
	for _, d := range n.Layout().L3Domains() {
		if d.SubsetOf(after.Idle()) {
			blocked = blocked.Union(d)
		}
	}
	if err := after.Restore(&allocate.Allocation{Key: barrier, Containers: []allocate.ContainerCPUs{{CPUs: blocked, Held: blocked, Share: 1}}}); err != nil {
		return nil, nil
	}
	var moves []Move
	largest := slices.SortedStableFunc(slices.Values(pods), func(a, b *allocate.Allocation) int { return cmp.Compare(b.CPUs().Len(), a.CPUs().Len()) })
	for _, p := range largest {
		r := request(p.Key)
		if r == nil {
			return nil, nil
		}
		to, err := al.Allocate(after, p.Key, r)
		if err != nil || worse(to.Cost, p.Cost) {
			return nil, nil
		}
		moves = append(moves, Move{p.Key, p, to})
	}
	after.Release(barrier)
	return moves, after
}

// worse says whether a pod would feel the move: more wishes given up, more NUMA nodes or L3 domains, more containers on
// its CPUs or its cores.
func worse(to, from allocate.Cost) bool {
	return to.Violations > from.Violations || to.NUMANodes > max(from.NUMANodes, 1) || to.Distance > from.Distance ||
		to.L3 > max(from.L3, 1) || to.Refs > from.Refs || to.SharedCores > from.SharedCores
}
