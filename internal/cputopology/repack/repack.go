// Package repack plans moves of pods within a node that free whole L3 domains, or whole NUMA nodes,
// for large pods. A move rewrites the CPU set of running containers; no pod is evicted.
//
//	Node ─▶ domains with few CPUs in use ─search─▶ new domains of their pods ─allocate─▶ moves
//	         (a NUMA node, or an L3 domain)         │
//	                     into other domains in use, if necessary in place of smaller
//	                     pieces that fit elsewhere; pods over several domains as a
//	                     whole, if necessary in exchange for the pods of another domain
//
// Each move goes to CPUs that are idle after the moves before it. So no two pods ever share a CPU
// that they do not share before or after the plan, provided that the moves are made in order and
// each is complete before the next begins. A plan may be abandoned after any move: every
// intermediate state is valid.
//
// The gain of a plan is the freed domains. Its cost is the number of CPUs moved, counted twice if a
// pod leaves its NUMA node, because its memory has to follow. No pod becomes worse off: it does not
// use more NUMA nodes, L3 domains or shared cores than before, and no more of its wishes are given
// up. Pods that keep domains for themselves, or have memory promised on a NUMA node, stay where they
// are (the last within their NUMA node). Pods that share CPUs are planned by Shared.
package repack

import (
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Budget bounds a plan.
type Budget struct {
	// MovesMax is the maximum number of pods moved; 0 means no limit.
	MovesMax int
	// CostMax is the maximum cost, in CPUs moved per CPU freed. Above it, the disturbance outweighs
	// the gain. 0 means CostMaxDefault.
	CostMax float64
	// StayInNUMA forbids moves to another NUMA node.
	StayInNUMA bool
}

// CostMaxDefault is the default of Budget.CostMax. With it, freeing an L3 domain of 8 CPUs may move
// 40 CPUs within their NUMA node, or 20 CPUs to other NUMA nodes. Rewriting a CPU set costs its
// threads a migration and cold caches, milliseconds each; a fragmented L3 domain costs the next
// large pod for its whole life.
const CostMaxDefault = 5.0

// crossNUMA is the cost of moving a CPU to another NUMA node, in units of moves within one.
const crossNUMA = 2

// Move moves a pod to other CPUs of its node.
type Move struct {
	Pod      string
	From, To *allocate.Allocation
}

// Plan is a list of moves, to be made in order, and the L3 domains that they free.
type Plan struct {
	Moves []Move
	Freed []cpuset.Set
	// Cost is the number of CPUs moved; CPUs moved to another NUMA node count twice.
	Cost int
}

// Within plans moves on one node. request returns the request of a pod that may be moved, and nil
// for a pod that must stay. The node is not changed.
func Within(n *allocate.Node, request func(key string) *allocate.Request, budget Budget) Plan {
	if budget.CostMax == 0 {
		budget.CostMax = CostMaxDefault
	}
	var plan Plan
	if !promising(n) {
		return plan
	}
	p := planner{node: n, request: request, s: newSearch(n, request, budget)}
	for {
		victims, cost, ok := p.s.next()
		if !ok {
			return plan
		}
		if budget.MovesMax > 0 && len(plan.Moves)+len(p.s.moves) > budget.MovesMax {
			p.s.undo()
			continue
		}
		moves, after := p.carryOut()
		if moves == nil {
			p.s.undo()
			continue
		}
		p.s.keep()
		p.node = after
		plan.Moves = append(plan.Moves, moves...)
		plan.Cost += cost
		for _, v := range victims {
			plan.Freed = append(plan.Freed, n.Layout().L3Domains()[v])
		}
	}
}

// promising reports whether the L3 domain with the fewest CPUs in use could be emptied into the
// gaps of the others.
func promising(n *allocate.Node) bool {
	domains := n.Layout().L3Domains()
	room, least, leastGap := 0, 0, 0
	for i, idle := range n.IdlePerL3() {
		if used := domains[i].Len() - idle; used > 0 && idle > 0 {
			room += idle
			if least == 0 || used < least {
				least, leastGap = used, idle
			}
		}
	}
	return least > 0 && room-leastGap >= least
}

type planner struct {
	al      allocate.Allocator
	node    *allocate.Node // state after the moves planned so far
	request func(key string) *allocate.Request
	s       *search
}

// carryOut chooses the CPUs for the moves that the search has just found. It returns nil if a pod
// would be worse off.
func (p *planner) carryOut() ([]Move, *allocate.Node) {
	after := p.node.Clone()
	var moves []Move
	for _, m := range p.s.moves {
		from := m.pod.allocation
		r := p.request(from.Key)
		company := after.Company(r, from.CPUs())
		l3, numas := after.Spans(from.CPUs())
		after.Release(from.Key)
		cpus := from.CPUs()
		for _, part := range m.parts {
			cpus = cpus.Minus(p.s.domains[part.from])
		}
		for _, part := range m.parts {
			cpus = cpus.Union(p.s.domains[part.to].Intersect(after.Idle()))
		}
		to, err := p.al.PlanWithin(after, from.Key, r, cpus)
		if err != nil || to.Cost.Violations > from.Cost.Violations || after.Restore(to) != nil {
			return nil, nil
		}
		if l, u := after.Spans(to.CPUs()); l > l3 || u > numas || after.Company(r, to.CPUs()) > company {
			return nil, nil
		}
		moves = append(moves, Move{from.Key, from, to})
	}
	// The search counted CPUs by domain; the policies of the pods may have led to other domains.
	if !slices.Equal(after.IdlePerL3(), p.s.idle) {
		return nil, nil
	}
	for i, m := range p.s.moves {
		m.pod.allocation = moves[i].To
	}
	return moves, after
}
