// Package repack plans moves of pods within a node that free whole L3 domains, or whole NUMA nodes,
// for large pods. A move rewrites the CPU set of running containers; no pod is evicted.
//
//	Node ─▶ domains with few CPUs in use ─search─▶ new domains of their pods ─allocate─▶ moves
//	         (a NUMA node, or an L3 domain)         │
//	                     into other domains in use, if necessary in place of smaller
//	                     pieces that fit elsewhere; pods over several domains as a
//	                     whole, if necessary in exchange for the pods of another domain
//
// Where that frees nothing more, a beam search looks for sequences of moves that use idle domains on the
// way (exchange). On a node that is nearly full it also brings gaps together in few NUMA nodes (gather):
// moves need room, and where all gaps are smaller than the pods, none is possible any more.
//
// Each move goes to CPUs that are idle after the moves before it. So no two pods ever share a CPU
// that they do not share before or after the plan, provided that the moves are made in order and
// each is complete before the next begins. A plan may be abandoned after any move: every
// intermediate state is valid, although one may have fewer idle domains than there were at first.
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
	// MovesMax is the maximum number of moves; 0 means no limit.
	MovesMax int
	// CostMax is the maximum cost, in CPUs moved per CPU freed. Above it, the disturbance outweighs
	// the gain. 0 means CostMaxDefault.
	CostMax float64
	// StayInNUMA forbids moves to another NUMA node.
	StayInNUMA bool
}

// CostMaxDefault is the default of Budget.CostMax. With it, freeing an L3 domain of 8 CPUs may move
// 96 CPUs within their NUMA node, or 48 CPUs to other NUMA nodes; far fewer are usual. Rewriting a CPU
// set costs its threads a migration and cold caches, milliseconds each; a fragmented L3 domain costs
// the next large pod for its whole life.
const CostMaxDefault = 12.0

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
	p := planner{node: n, request: request, budget: budget}
	// Gaps that have come together may let a domain become free. That ends: each round has more idle domains, or
	// as many and larger gaps.
	for gathered := true; gathered; {
		if promising(p.node) {
			for more := true; more; more = p.exchange() {
				p.free()
			}
		}
		gathered = full(n) && p.gather()
	}
	p.plan.Freed = freed(n, p.node)
	for _, m := range p.plan.Moves {
		p.plan.Cost += cost(n.Layout(), m)
	}
	return p.plan
}

// cost returns the number of CPUs that a move gives a pod; those in another NUMA node count twice.
func cost(l *allocate.Layout, m Move) int {
	domains, numa := l.L3Domains(), l.NUMAOfL3()
	had := map[int]bool{} // NUMA nodes
	for d := range domains {
		if domains[d].Overlaps(m.From.CPUs()) {
			had[numa[d]] = true
		}
	}
	sum := 0
	for d := range domains {
		more := m.To.CPUs().Minus(m.From.CPUs()).Intersect(domains[d]).Len()
		if !had[numa[d]] {
			more *= crossNUMA
		}
		sum += more
	}
	return sum
}

// freed returns the L3 domains that are idle afterwards and not before, as many as are idle in addition.
func freed(before, after *allocate.Node) []cpuset.Set {
	var out []cpuset.Set
	more := after.IdleL3() - before.IdleL3()
	was, domains := before.IdlePerL3(), before.Layout().L3Domains()
	for d, idle := range after.IdlePerL3() {
		if size := domains[d].Len(); idle == size && was[d] < size && len(out) < more {
			out = append(out, domains[d])
		}
	}
	return out
}

// fullBelow is the share of a machine's CPUs, as a divisor, of which more must be idle for a node not to be
// nearly full. Then the next large pod finds room anyway, and there is room for moves.
const fullBelow = 8

// full reports whether a node is nearly full.
func full(n *allocate.Node) bool { return idleAtMost(n, fullBelow) }

// idleAtMost reports whether at most one in so many of a machine's CPUs is idle.
func idleAtMost(n *allocate.Node, divisor int) bool {
	return n.IdleCPUs()*divisor <= n.Layout().Topology().Online().Len()
}

// free plans moves that free L3 domains or NUMA nodes, until no more can be freed.
func (p *planner) free() {
	p.s = newSearch(p.node, p.request, p.budget)
	for {
		if !p.s.next() {
			return
		}
		p.add()
	}
}

// add adds the moves that the search has found to the plan, or undoes them if they are too many or make
// a pod worse off.
func (p *planner) add() {
	if p.s.budget.MovesMax > 0 && len(p.plan.Moves)+len(p.s.moves) > p.s.budget.MovesMax {
		p.s.undo()
		return
	}
	moves, after := p.carryOut()
	if moves == nil {
		p.s.undo()
		return
	}
	p.s.keep()
	p.node = after
	p.plan.Moves = append(p.plan.Moves, moves...)
}

// wholeCores returns a number of idle CPUs, in as many whole cores as possible, and of the other cores
// first those that are in use.
func wholeCores(cores []cpuset.Set, idle cpuset.Set, count int) cpuset.Set {
	var out cpuset.Builder
	take := func(s cpuset.Set) {
		for id := range s.All() {
			if count > 0 {
				out.Add(id)
				count--
			}
		}
	}
	var whole, parts []cpuset.Set
	for _, core := range cores {
		switch free := core.Intersect(idle); {
		case free.IsEmpty():
		case free.Len() < core.Len():
			parts = append(parts, free)
		case free.Len() <= count:
			take(free)
		default:
			whole = append(whole, free)
		}
	}
	for _, s := range append(parts, whole...) {
		take(s)
	}
	return out.Set()
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
	budget  Budget
	s       *search
	plan    Plan
}

// carryOut chooses the CPUs for the moves that the search has just found. It returns nil if a pod
// would be worse off.
func (p *planner) carryOut() ([]Move, *allocate.Node) {
	after := p.node.Clone()
	var moves []Move
	for _, m := range p.s.moves {
		from := after.Pod(m.pod.allocation.Key)
		to := p.carry(after, from, func() cpuset.Set {
			cpus := from.CPUs()
			for _, part := range m.parts {
				cpus = cpus.Minus(p.s.domains[part.from])
			}
			several := !cpus.IsEmpty() || len(m.parts) > 1
			for _, part := range m.parts {
				idle := p.s.domains[part.to].Intersect(after.Idle())
				if several { // else the pod could take more here, and leave CPUs elsewhere that no move counts on
					idle = wholeCores(p.node.Layout().Topology().Cores, idle, part.cpus)
				}
				cpus = cpus.Union(idle)
			}
			return cpus
		})
		if to == nil {
			return nil, nil
		}
		moves = append(moves, Move{from.Key, from, to})
	}
	// The search counted CPUs by domain; the policies of the pods may have led to other domains.
	if !slices.Equal(after.IdlePerL3(), p.s.idle) {
		return nil, nil
	}
	return moves, after
}
