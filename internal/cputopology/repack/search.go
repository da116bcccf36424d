package repack

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// search looks for ways to empty domains. It knows how many CPUs each pod has in each L3 domain,
// but not which.
type search struct {
	budget     Budget
	domains    []cpuset.Set
	numa       []int // of each domain
	idle       []int // idle CPUs of each domain
	pieces     [][]*piece
	candidates []domainsToFree
	moves      []move // of the current attempt, in order
	spent      int    // cost of moves
	costMax    int    // of the current attempt
	steps      int    // steps left in the current attempt
	leaving    []bool // by domain: no piece may enter
}

// Bounds of the search for one victim: the number of placements tried, and the depth to which one
// piece displaces another.
const (
	stepsMax     = 600
	displacedMax = 2
)

// pod is a pod that may be moved, at most once.
type pod struct {
	allocation *allocate.Allocation
	cpus       int // in all
	perL3      []int
	moved      bool
	bound      bool // must stay in its NUMA nodes
}

// piece is the part of a pod in one domain.
type piece struct {
	pod    *pod
	domain int
	cpus   int
}

// move brings parts of a pod to other domains.
type move struct {
	pod   *pod
	parts []part
}

type part struct{ cpus, from, to int }

// domainsToFree is a group of domains to be emptied together.
type domainsToFree struct {
	domains []int
	used    int // CPUs that have to be vacated
	size    int // CPUs that are gained
}

func newSearch(n *allocate.Node, request func(string) *allocate.Request, budget Budget) *search {
	l := n.Layout()
	s := &search{budget: budget, domains: l.L3Domains(), numa: l.NUMAOfL3(), idle: n.IdlePerL3()}
	s.pieces = make([][]*piece, len(s.domains))
	s.leaving = make([]bool, len(s.domains))
	movable := make([]int, len(s.domains)) // CPUs of pods that may be moved
	for _, a := range n.Pods() {
		if !own(a) || request(a.Key) == nil {
			continue
		}
		p := &pod{allocation: a, cpus: a.CPUs().Len(), perL3: make([]int, len(s.domains)), bound: budget.StayInNUMA ||
			memoryBound(a)}
		l.PerL3(a.CPUs(), p.perL3)
		for d, cpus := range p.perL3 {
			if cpus > 0 {
				s.pieces[d] = append(s.pieces[d], &piece{p, d, cpus})
				movable[d] += cpus
			}
		}
	}
	s.findVictims(movable)
	return s
}

// own reports whether a pod has its CPUs for itself and keeps no other CPUs free.
func own(a *allocate.Allocation) bool {
	for _, c := range a.Containers {
		if c.Share != 1 || !c.Held.SubsetOf(a.CPUs()) {
			return false
		}
	}
	return true
}

func memoryBound(a *allocate.Allocation) bool {
	return len(a.MemoryBytes) > 0 || slices.ContainsFunc(a.Containers, func(c allocate.ContainerCPUs) bool {
		return !c.Mems.IsEmpty()
	})
}

// findVictims lists the domains that could be emptied: NUMA nodes before L3 domains, and those with
// the fewest CPUs in use first.
func (s *search) findVictims(movable []int) {
	for d, idle := range s.idle {
		size := s.domains[d].Len()
		// CPUs that are neither idle nor held by a movable pod stay as they are: they are reserved,
		// shared or held by pods of other parties. Emptying even a full domain may be worthwhile,
		// because its pods may fill gaps that no other pod fits.
		if used := movable[d]; used > 0 && used+idle == size {
			s.candidates = append(s.candidates, domainsToFree{[]int{d}, used, size})
		}
	}
	byUse := func(a, b domainsToFree) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.domains[0], b.domains[0]))
	}
	slices.SortFunc(s.candidates, byUse)
	if s.budget.StayInNUMA {
		return
	}
	var numas []domainsToFree
	for from := 0; from < len(s.domains); {
		v := domainsToFree{}
		stuck, idleL3 := false, 0
		to := from
		for ; to < len(s.domains) && s.numa[to] == s.numa[from]; to++ {
			size := s.domains[to].Len()
			switch {
			case s.idle[to] == size:
				idleL3++
			case movable[to]+s.idle[to] == size:
				v.domains = append(v.domains, to)
				v.used += movable[to]
				v.size += size
			default:
				stuck = true
			}
		}
		// Without an idle L3 domain there is no gain over freeing the L3 domains alone.
		if !stuck && idleL3 > 0 && len(v.domains) > 0 {
			numas = append(numas, v)
		}
		from = to
	}
	slices.SortFunc(numas, byUse)
	s.candidates = append(numas, s.candidates...)
}

// next finds moves that empty the next victim that can be emptied. The caller must then call keep
// or undo.
func (s *search) next() bool {
	for len(s.candidates) > 0 {
		v := s.candidates[0]
		s.candidates = s.candidates[1:]
		s.moves, s.spent, s.steps = s.moves[:0], 0, stepsMax
		s.costMax = int(s.budget.CostMax * float64(v.size))
		if v.used > s.costMax || slices.ContainsFunc(v.domains, func(d int) bool { return s.idle[d] == s.domains[d].Len() }) {
			continue
		}
		var leaving []*piece
		movable := 0
		for _, d := range v.domains {
			s.leaving[d] = true
			for _, p := range s.pieces[d] {
				if !p.pod.moved {
					leaving = append(leaving, p)
					movable += p.cpus
				}
			}
		}
		total := 0
		for _, d := range v.domains {
			total += s.domains[d].Len() - s.idle[d]
		}
		// Largest first, because large pieces have the fewest possible places.
		slices.SortStableFunc(leaving, func(a, b *piece) int { return b.cpus - a.cpus })
		found := movable == total && s.placeAll(leaving)
		for _, d := range v.domains {
			s.leaving[d] = false
		}
		if found {
			return true
		}
	}
	return false
}

// placeAll finds a domain for each piece.
func (s *search) placeAll(left []*piece) bool {
	if len(left) == 0 {
		return true
	}
	return s.place(left[0], displacedMax, func() bool { return s.placeAll(left[1:]) })
}

// place tries domains for a piece, tightest first. Then it tries domains in which one or two
// smaller pieces make room by moving elsewhere. It stops when the rest can be placed too.
func (s *search) place(p *piece, displace int, rest func() bool) bool {
	if p.pod.moved || s.steps == 0 {
		return false
	}
	type option struct{ to, slack, cost int }
	var options []option
	for d, idle := range s.idle {
		if c := s.cost(p, d); c > 0 && idle >= p.cpus && idle < s.domains[d].Len() {
			options = append(options, option{d, idle - p.cpus, c})
		}
	}
	slices.SortFunc(options, func(a, b option) int {
		return cmp.Or(cmp.Compare(a.slack, b.slack), cmp.Compare(a.cost, b.cost), cmp.Compare(a.to, b.to))
	})
	for i, o := range options {
		if i > 0 && o.slack == options[i-1].slack && o.cost == options[i-1].cost {
			continue // equal domains need no second try
		}
		if s.try(p, o.to, o.cost, rest) {
			return true
		}
	}
	if displace == 0 {
		return false
	}
	for d, idle := range s.idle {
		c := s.cost(p, d)
		if c == 0 || idle == 0 || idle >= p.cpus {
			continue
		}
		for i, q := range s.pieces[d] {
			if s.mayGo(q, p) && idle+q.cpus >= p.cpus && s.displace(p, d, c, []*piece{q}, displace-1, rest) {
				return true
			}
			for _, r := range s.pieces[d][:i] {
				if s.mayGo(q, p) && s.mayGo(r, p) && idle+q.cpus < p.cpus && idle+r.cpus < p.cpus && idle+q.cpus+r.cpus >= p.cpus &&
					s.displace(p, d, c, []*piece{r, q}, displace-1, rest) {
					return true
				}
			}
		}
	}
	return s.placeWhole(p, rest)
}

// placeWhole moves a pod that spans several L3 domains to another NUMA node as a whole: the domains
// that it fills to idle domains, which changes nothing else, and the piece to the tightest domain
// in use. If one idle domain is missing there, the pods of another domain make room by moving to an
// idle domain in another NUMA node, to compensate for the domains that the pod leaves.
func (s *search) placeWhole(p *piece, rest func() bool) bool {
	cpus := p.pod.cpus
	if p.pod.bound || p.cpus == cpus || s.spent+crossNUMA*cpus > s.costMax {
		return false
	}
	var fills []int
	for d, n := range p.pod.perL3 {
		switch {
		case n == 0 || d == p.domain:
		case n < s.domains[d].Len() || s.numa[d] != s.numa[p.domain] || s.domains[d].Len() != s.domains[p.domain].Len():
			return false
		default:
			fills = append(fills, d)
		}
	}
	for from := 0; from < len(s.domains); {
		var idle []int
		tightest, to := -1, from
		for ; to < len(s.domains) && s.numa[to] == s.numa[from]; to++ {
			switch gap := s.idle[to]; {
			case s.leaving[to] || s.domains[to].Len() != s.domains[p.domain].Len():
			case gap == s.domains[to].Len():
				idle = append(idle, to)
			case gap >= p.cpus && (tightest < 0 || gap < s.idle[tightest]):
				tightest = to
			}
		}
		if s.numa[from] != s.numa[p.domain] && tightest >= 0 {
			whole := func(into []int) bool {
				parts := []part{{p.cpus, p.domain, tightest}}
				for k, f := range fills {
					parts = append(parts, part{s.domains[f].Len(), f, into[k]})
				}
				return s.tryMove(move{p.pod, parts}, crossNUMA*cpus, rest)
			}
			if len(idle) >= len(fills) && whole(idle) {
				return true
			}
			if len(idle) == len(fills)-1 && s.vacate(from, to, tightest, p.pod, func(made int) bool {
				return whole(append(idle, made))
			}) {
				return true
			}
		}
		from = to
	}
	return false
}

// vacate moves the pods of the least used domain in from..to-1 to an idle domain of another NUMA
// node. It vacates neither the domain but, which is to receive a piece, nor a domain with CPUs of
// the pod by.
func (s *search) vacate(from, to, but int, by *pod, rest func(made int) bool) bool {
	made, used := -1, 0
	for d := from; d < to; d++ {
		n := s.domains[d].Len() - s.idle[d]
		if d == but || n == 0 || s.leaving[d] || by.perL3[d] > 0 || made >= 0 && n >= used {
			continue
		}
		sum := 0
		for _, q := range s.pieces[d] {
			if !q.pod.moved && !q.pod.bound && q.cpus == q.pod.cpus {
				sum += q.cpus
			}
		}
		if sum == n {
			made, used = d, n
		}
	}
	if made < 0 {
		return false
	}
	for d, idle := range s.idle {
		if s.numa[d] == s.numa[made] || idle < s.domains[d].Len() || idle < used || s.leaving[d] {
			continue
		}
		return s.all(s.pieces[made], d, func() bool { return rest(made) })
	}
	return false
}

// all moves pieces, each of which is its whole pod, to a domain in another NUMA node.
func (s *search) all(pieces []*piece, to int, rest func() bool) bool {
	if len(pieces) == 0 {
		return rest()
	}
	return s.try(pieces[0], to, crossNUMA*pieces[0].cpus, func() bool { return s.all(pieces[1:], to, rest) })
}

// mayGo reports whether a piece may make room for a larger one.
func (s *search) mayGo(q, p *piece) bool { return q.cpus < p.cpus && !q.pod.moved }

// displace moves pieces of a domain elsewhere and another piece into their place.
func (s *search) displace(p *piece, d, cost int, out []*piece, depth int, rest func() bool) bool {
	if len(out) == 0 {
		s.leaving[d] = false
		done := s.try(p, d, cost, rest)
		s.leaving[d] = true
		return done
	}
	s.leaving[d] = true // the displaced pieces must not come back
	done := s.place(out[0], depth, func() bool { return s.displace(p, d, cost, out[1:], depth, rest) })
	s.leaving[d] = false
	return done
}

// cost returns the cost of moving a piece to a domain, or 0 if the piece may not go there.
func (s *search) cost(p *piece, to int) int {
	if s.leaving[to] || to == p.domain || p.pod.perL3[to] > 0 {
		return 0
	}
	if s.numa[to] == s.numa[p.domain] {
		return p.cpus
	}
	if p.pod.bound || p.cpus < p.pod.cpus { // a part cannot leave the rest of its pod
		return 0
	}
	return crossNUMA * p.cpus
}

// try moves a piece, and moves it back if the rest cannot be placed.
func (s *search) try(p *piece, to, cost int, rest func() bool) bool {
	return s.tryMove(move{p.pod, []part{{p.cpus, p.domain, to}}}, cost, rest)
}

func (s *search) tryMove(m move, cost int, rest func() bool) bool {
	if s.spent+cost > s.costMax || s.steps == 0 {
		return false
	}
	s.steps--
	s.shift(m, 1)
	s.spent += cost
	s.moves = append(s.moves, m)
	m.pod.moved = true
	if rest() {
		return true
	}
	m.pod.moved = false
	s.moves = s.moves[:len(s.moves)-1]
	s.spent -= cost
	s.shift(m, -1)
	return false
}

// shift makes a move (1) or reverses it (-1).
func (s *search) shift(m move, sign int) {
	for _, p := range m.parts {
		s.idle[p.from] += sign * p.cpus
		s.idle[p.to] -= sign * p.cpus
	}
}

// keep makes the moves found final.
func (s *search) keep() {
	for _, m := range s.moves {
		for _, part := range m.parts {
			s.pieces[part.from] = slices.DeleteFunc(s.pieces[part.from], func(p *piece) bool { return p.pod == m.pod })
			s.pieces[part.to] = append(s.pieces[part.to], &piece{m.pod, part.to, part.cpus})
			m.pod.perL3[part.from] -= part.cpus
			m.pod.perL3[part.to] += part.cpus
		}
	}
	s.moves = s.moves[:0]
}

// undo reverses the moves found.
func (s *search) undo() {
	for _, m := range slices.Backward(s.moves) {
		s.shift(m, -1)
		m.pod.moved = false
	}
	s.moves = s.moves[:0]
}
