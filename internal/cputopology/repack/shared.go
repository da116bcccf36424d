package repack

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/sharing"
)

// Shared plans moves of pods that share CPUs. It brings the pods of L3 domains that are little used
// together in other shared domains, as far as these have room for what the pods request (package
// sharing), so that the domains they leave become idle. requested returns what a pod requests for
// shared CPUs, in thousandths of a CPU; request is that of Within. The moves may be made in any order.
func Shared(n *allocate.Node, request func(key string) *allocate.Request, requested func(key string) int64, budget Budget) Plan {
	if budget.CostMax == 0 {
		budget.CostMax = CostMaxDefault
	}
	p := sharedPlanner{node: n.Clone(), request: request, requested: requested, budget: budget, moved: map[string]bool{}}
	domains := n.Layout().L3Domains()
	for _, victim := range p.victims() {
		moves, cost, ok := p.empty(domains, victim)
		if !ok || float64(cost) > budget.CostMax*float64(domains[victim].Len()) ||
			budget.MovesMax > 0 && len(p.plan.Moves)+len(moves) > budget.MovesMax {
			continue
		}
		for _, m := range moves {
			p.node.Release(m.Pod)
			if p.node.Restore(m.To) != nil {
				return p.plan // cannot be: the moves were made on a copy
			}
			p.moved[m.Pod] = true
		}
		p.plan.Moves = append(p.plan.Moves, moves...)
		p.plan.Cost += cost
		p.plan.Freed = append(p.plan.Freed, domains[victim])
	}
	return p.plan
}

type sharedPlanner struct {
	al        allocate.Allocator
	node      *allocate.Node
	request   func(string) *allocate.Request
	requested func(string) int64
	budget    Budget
	moved     map[string]bool
	plan      Plan
}

// victims returns the shared domains in which no pod has CPUs of its own, those with the lowest load
// first.
func (p *sharedPlanner) victims() []int {
	exclusive := p.node.Exclusive()
	state := sharing.NewState(p.node, p.requested)
	var out []int
	for i, set := range p.node.Layout().L3Domains() {
		if state.Shared(i) && !set.Overlaps(exclusive) {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(state.Load(a), state.Load(b)) })
	return out
}

// empty plans the moves of all pods of a domain into other shared domains. ok is false if a pod cannot
// be moved, or would get worse CPUs.
func (p *sharedPlanner) empty(domains []cpuset.Set, victim int) (moves []Move, cost int, ok bool) {
	after := p.node.Clone()
	var pods []*allocate.Allocation
	for _, a := range after.Pods() {
		if !a.CPUs().Overlaps(domains[victim]) {
			continue
		}
		if p.request(a.Key) == nil || p.moved[a.Key] || a.Shared().Len() < a.CPUs().Len() {
			return nil, 0, false
		}
		pods = append(pods, a)
	}
	if len(pods) == 0 {
		return nil, 0, false
	}
	slices.SortStableFunc(pods, func(a, b *allocate.Allocation) int { return cmp.Compare(p.requested(b.Key), p.requested(a.Key)) })
	for _, from := range pods {
		l3, numas := after.Spans(from.CPUs())
		after.Release(from.Key)
		to := p.place(after, from, domains[victim])
		if to == nil {
			return nil, 0, false
		}
		if l, u := after.Spans(to.CPUs()); l > l3 || u > numas || after.Restore(to) != nil {
			return nil, 0, false
		}
		moves = append(moves, Move{from.Key, from, to})
		_, together := after.Spans(from.CPUs().Union(to.CPUs()))
		if together > numas {
			if p.budget.StayInNUMA || memoryBound(from) {
				return nil, 0, false
			}
			cost += (crossNUMA - 1) * to.CPUs().Len()
		}
		cost += to.CPUs().Len()
	}
	return moves, cost, true
}

// place plans a pod in shared domains other than the victim, or returns nil.
func (p *sharedPlanner) place(n *allocate.Node, from *allocate.Allocation, victim cpuset.Set) *allocate.Allocation {
	r := p.request(from.Key)
	for _, set := range sharing.NewState(n, p.requested).Rooms(p.requested(from.Key), r.CPUs()) {
		if set.Overlaps(victim) {
			continue
		}
		if to, err := p.al.PlanWithin(n, from.Key, r, set); err == nil {
			return to
		}
	}
	return nil
}
