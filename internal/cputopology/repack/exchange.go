package repack

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// exchange looks for a sequence of moves that frees one more L3 domain where the search for places of
// one domain's pods (search) finds none: a beam search over the states that moves lead to. Moves on the
// way may use an idle domain, exchange the pods of several domains and NUMA nodes, and cut a pod that has
// several domains anew. States are judged by the squares of the gaps, since a domain becomes free when
// gaps come together.
//
// The same search brings gaps together, in domains and in NUMA nodes. What is found then is the state whose
// gaps are worth most for what the moves to it cost.
//
// Every move goes to CPUs that are idle in its state, or to the pod's own. A state is its idle CPUs and the
// moves that led there; a pod may move more than once.
type exchange struct {
	goal    goal
	size    []int // of each domain
	numa    []int // of each domain
	numas   [][]int
	pods    []exchanged
	costMax int
	start   int // idle domains at first
	most    int // bound of the idle domains
	largest int // number of CPUs of the largest pod that may be moved
	found   []*layoutState
	seen    map[uint64]int // cost of states that were in a beam, by their hash
	best    int            // of what is found, to gather: the squares of its gaps less what it costs
	width   int            // states that are kept for each number of moves and of idle domains
	only    []bool         // by NUMA node: consider only pods there, if not nil
	few     []int          // scratch of inNUMA
	inEach  []int          // scratch of expand: idle CPUs of each NUMA node
}

// Bounds of a beam search: states kept for each number of moves and of idle domains, the number of moves,
// and how many idle domains may be in use on the way.
const (
	beamWidth  = 32
	beamMoves  = 14
	beamBelow  = 2
	beamFound  = 4 // sequences of moves that are tried
	piecesMost = 4 // domains of a pod that is moved

	// Of searches that consider a few NUMA nodes: how many, the number of searches, and of machines on
	// which there are any.
	subsetSize, subsetsMost, subsetWidth, subsetOf = 3, 8, 16, 16

	// Of searches that bring gaps together. The sum of the squares of the gaps must grow by gatherWorth
	// for each CPU that is moved; the gaps of NUMA nodes count gatherNUMA times. If more than one in
	// gatherAlways CPUs is idle, gaps are brought together only if no NUMA node has room for the largest pod.
	gatherWidth, gatherMoves, gatherWorth, gatherNUMA, gatherAlways = 16, 6, 1, 2, 12
)

// exchanged is a pod that may be moved.
type exchanged struct {
	allocation *allocate.Allocation
	cpus       int
	numas      int
	bound      bool // must stay in its NUMA nodes
	at         cuts
}

// cuts are the numbers of CPUs that a pod has in each of its domains, in ascending order of domains.
type cuts struct {
	n  int8
	of [piecesMost]onDomain
}

type onDomain struct{ domain, cpus int16 }

// goal is what a search looks for.
type goal int

const (
	toFree   goal = iota // one more idle domain
	toGather             // larger gaps, and no fewer idle domains
)

func (c *cuts) add(domain, cpus int) bool {
	if cpus == 0 {
		return true
	}
	for i := range c.of[:c.n] {
		if int(c.of[i].domain) == domain {
			c.of[i].cpus += int16(cpus)
			return true
		}
	}
	if c.n == piecesMost {
		return false
	}
	i := int(c.n)
	for ; i > 0 && int(c.of[i-1].domain) > domain; i-- {
		c.of[i] = c.of[i-1]
	}
	c.of[i] = onDomain{int16(domain), int16(cpus)}
	c.n++
	return true
}

func (c *cuts) in(domain int) int {
	for _, x := range c.of[:c.n] {
		if int(x.domain) == domain {
			return int(x.cpus)
		}
	}
	return 0
}

// layoutState is a state of the node, as numbers of CPUs, and the move that led there.
type layoutState struct {
	parent *layoutState
	pod    int
	from   cuts
	to     cuts
	moves  int
	cost   int
	whole  int // idle domains
	score  int // sum of the squares of the gaps
	hash   uint64
	idle   []int16
	holds  []uint64 // by domain: sum of the hashes of what it holds
}

// at returns where a pod is after its last move, and false if it has not moved.
func (s *layoutState) at(pod int) (cuts, bool) {
	for ; s.parent != nil; s = s.parent {
		if s.pod == pod {
			return s.to, true
		}
	}
	return cuts{}, false
}

// path returns the states from the first move on.
func (s *layoutState) path() []*layoutState {
	out := make([]*layoutState, s.moves)
	for ; s.parent != nil; s = s.parent {
		out[s.moves-1] = s
	}
	return out
}

func newExchange(n *allocate.Node, request func(string) *allocate.Request, budget Budget) (*exchange, *layoutState) {
	l := n.Layout()
	e := &exchange{numa: l.NUMAOfL3(), seen: map[uint64]int{}}
	first := &layoutState{pod: -1}
	for d, idle := range n.IdlePerL3() {
		size := l.L3Domains()[d].Len()
		e.size = append(e.size, size)
		for e.numa[d] >= len(e.numas) {
			e.numas = append(e.numas, nil)
		}
		e.numas[e.numa[d]] = append(e.numas[e.numa[d]], d)
		first.idle = append(first.idle, int16(idle))
		first.score += idle * idle
		if idle == size {
			first.whole++
		}
	}
	first.holds = make([]uint64, len(e.size))
	e.start = first.whole
	e.costMax = int(budget.CostMax * float64(slices.Max(e.size)))
	perL3 := make([]int, len(e.size))
	var whole []int // sizes of pods that are not split
	for _, a := range n.Pods() {
		clear(perL3)
		cpus := a.CPUs()
		l.PerL3(cpus, perL3)
		p := exchanged{allocation: a, cpus: cpus.Len(), bound: budget.StayInNUMA || memoryBound(a)}
		_, p.numas = n.Spans(cpus)
		fits := true
		for d, held := range perL3 {
			if held > 0 {
				fits = p.at.add(d, held) && fits
				first.holds[d] += hashOf(p.cpus, held)
			}
		}
		if own(a) && request(a.Key) != nil {
			e.largest = max(e.largest, p.cpus)
			if fits && p.at.n > 0 {
				e.pods = append(e.pods, p)
			}
		}
		if own(a) && fits && int(p.at.n-1)*slices.Min(e.size) < p.cpus {
			whole = append(whole, p.cpus)
		}
	}
	first.hash = e.hash(first.holds)
	size := slices.Max(e.size)
	e.most = len(e.size) - max(l.FewestL3(whole), (l.Topology().Online().Len()-n.IdleCPUs()+size-1)/size)
	return e, first
}

// hashOf returns a number for a pod of so many CPUs, of which some are in a domain.
func hashOf(cpus, here int) uint64 { return mix(uint64(cpus)<<16 | uint64(here)) }

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hash returns a number for what the domains hold, the same for domains of a NUMA node, and for NUMA
// nodes, in any order.
func (e *exchange) hash(holds []uint64) uint64 {
	sum := uint64(0)
	for _, domains := range e.numas {
		in := uint64(0)
		for _, d := range domains {
			in += mix(holds[d])
		}
		sum += mix(in)
	}
	return sum
}

// beam holds the best states for a number of moves, by the number of idle domains that are lacking.
type beam [beamBelow + 1][]*layoutState

// run searches, and fills found with the states that have one idle domain more, cheapest first.
func (e *exchange) run(first *layoutState, movesMax int) {
	now := beam{{first}}
	e.seen[first.hash] = 0
	for depth := 1; depth <= movesMax; depth++ {
		var next beam
		for lacking := range now {
			for _, s := range now[lacking] {
				e.expand(s, &next)
			}
		}
		if len(e.found) > 0 && e.goal != toGather {
			slices.SortStableFunc(e.found, func(a, b *layoutState) int { return cmp.Compare(a.cost, b.cost) })
			e.found = e.found[:min(len(e.found), beamFound)]
			return
		}
		for lacking := range next {
			for _, s := range next[lacking] {
				e.complete(s)
				e.seen[s.hash] = s.cost
			}
		}
		now = next
	}
	if e.goal == toGather {
		slices.Reverse(e.found)
		e.found = e.found[:min(len(e.found), beamFound)]
	}
}

// complete computes what is not needed to compare states.
func (e *exchange) complete(s *layoutState) {
	s.idle, s.holds = slices.Clone(s.parent.idle), slices.Clone(s.parent.holds)
	p := &e.pods[s.pod]
	apply(s.idle, s.holds, p.cpus, s.from, -1)
	apply(s.idle, s.holds, p.cpus, s.to, 1)
}

// apply takes the CPUs of a pod (1) or gives them back (-1).
func apply(idle []int16, holds []uint64, cpus int, at cuts, sign int) {
	for _, x := range at.of[:at.n] {
		idle[x.domain] -= int16(sign) * x.cpus
		if h := hashOf(cpus, int(x.cpus)); sign > 0 {
			holds[x.domain] += h
		} else {
			holds[x.domain] -= h
		}
	}
}

// expand adds the states that one more move leads to.
func (e *exchange) expand(s *layoutState, next *beam) {
	idle, holds := slices.Clone(s.idle), slices.Clone(s.holds)
	few := e.representatives(s)
	e.inEach = append(e.inEach[:0], make([]int, len(e.numas))...)
	for d, n := range s.idle {
		e.inEach[e.numa[d]] += int(n)
	}
	for i := range e.pods {
		now := e.pods[i]
		p := &now
		if at, moved := s.at(i); moved {
			p.at, p.numas = at, e.numasOf(&at)
		}
		if !e.within(&p.at) {
			continue
		}
		apply(idle, holds, p.cpus, p.at, -1)
		for m := range e.numas {
			if e.only != nil && !e.only[m] {
				continue
			}
			here := e.numa[p.at.of[0].domain] == m || p.numas > 1
			if here || !p.bound && e.costMax-s.cost >= crossNUMA*p.cpus {
				e.inNUMA(p, idle, e.numas[m], few[m], func(to *cuts) { e.visit(s, i, p, to, idle, holds, next) })
			}
		}
		if p.numas > 1 {
			e.acrossNUMA(p, idle, func(to *cuts) { e.visit(s, i, p, to, idle, holds, next) })
		}
		apply(idle, holds, p.cpus, p.at, 1)
	}
}

// representatives returns, for each NUMA node, its domains but for those that hold the same as two before
// them.
func (e *exchange) representatives(s *layoutState) [][]int {
	few := make([][]int, len(e.numas))
	for m, domains := range e.numas {
		for _, d := range domains {
			same := 0
			for _, o := range few[m] {
				if s.holds[o] == s.holds[d] && s.idle[o] == s.idle[d] && e.size[o] == e.size[d] {
					same++
				}
			}
			if same < 2 && s.idle[d] > 0 {
				few[m] = append(few[m], d)
			}
		}
	}
	return few
}

// inNUMA calls visit for ways to give a pod its CPUs in one NUMA node, in at most as many domains as it
// has. idle includes the pod's own CPUs. Of several domains, all but two are filled, and one of these two,
// which are among few and the pod's own, gives all that it has.
func (e *exchange) inNUMA(p *exchanged, idle []int16, domains, few []int, visit func(*cuts)) {
	if p.bound && p.numas > 1 {
		return
	}
	k := int(p.at.n)
	var base cuts
	left := p.cpus
	// Fill domains: those that the pod fills already, then others.
	fills := max(0, k-2)
	if full := e.size[domains[0]]; fills*full >= p.cpus {
		fills = (p.cpus - 1) / full
	}
	for _, own := range []bool{true, false} {
		for _, d := range slices.Backward(domains) { // the first ones stay for the other two
			if fills > 0 && int(idle[d]) == e.size[d] && (p.at.in(d) == e.size[d]) == own && e.size[d] < left {
				base.add(d, e.size[d])
				left -= e.size[d]
				fills--
			}
		}
	}
	rest := k - int(base.n)
	e.few = append(e.few[:0], few...)
	for _, x := range p.at.of[:p.at.n] {
		if d := int(x.domain); e.numa[d] == e.numa[domains[0]] && !slices.Contains(few, d) {
			e.few = append(e.few, d)
		}
	}
	for _, d := range e.few {
		if idle[d] == 0 || base.in(d) > 0 {
			continue
		}
		if int(idle[d]) >= left {
			to := base
			if to.add(d, left) {
				visit(&to)
			}
		}
		if rest < 2 {
			continue
		}
		first := min(int(idle[d]), left-1)
		for _, o := range e.few {
			if first > 0 && o != d && base.in(o) == 0 && int(idle[o]) >= left-first {
				to := base
				if to.add(d, first) && to.add(o, left-first) {
					visit(&to)
				}
			}
		}
	}
}

// acrossNUMA calls visit for ways to move one part of a pod that is in several NUMA nodes, or to cut two
// parts anew.
func (e *exchange) acrossNUMA(p *exchanged, idle []int16, visit func(*cuts)) {
	for i, x := range p.at.of[:p.at.n] {
		without := cuts{}
		alone := true // in its NUMA node
		for j, y := range p.at.of[:p.at.n] {
			if j != i {
				without.add(int(y.domain), int(y.cpus))
				alone = alone && e.numa[y.domain] != e.numa[x.domain]
			}
		}
		for d := range e.size {
			// Into a NUMA node that the pod has, or out of one that it then has no longer.
			if d == int(x.domain) || p.at.in(d) > 0 || idle[d] < x.cpus {
				continue
			}
			has := e.numa[d] == e.numa[x.domain]
			for _, y := range without.of[:without.n] {
				has = has || e.numa[y.domain] == e.numa[d]
			}
			if has && (!p.bound || e.numa[d] == e.numa[x.domain]) || alone && !p.bound {
				to := without
				to.add(d, int(x.cpus))
				visit(&to)
			}
		}
		for j, y := range p.at.of[:p.at.n] {
			if j == i || p.bound && e.numa[x.domain] != e.numa[y.domain] {
				continue
			}
			if more := min(int(idle[x.domain]-x.cpus), int(y.cpus)); more > 0 {
				to := without
				to.add(int(x.domain), int(x.cpus)+more)
				for k := range to.of[:to.n] {
					if to.of[k].domain == y.domain {
						to.of[k].cpus -= int16(more)
					}
				}
				to.drop()
				visit(&to)
			}
		}
	}
}

// drop removes domains without CPUs.
func (c *cuts) drop() {
	n := int8(0)
	for _, x := range c.of[:c.n] {
		if x.cpus > 0 {
			c.of[n] = x
			n++
		}
	}
	clear(c.of[n:])
	c.n = n
}

// visit adds the state after a move to the next beam, or to the states found. idle and holds are without
// the pod.
func (e *exchange) visit(s *layoutState, pod int, p *exchanged, to *cuts, idle []int16, holds []uint64, next *beam) {
	if *to == p.at || !e.within(to) {
		return
	}
	cost := s.cost
	for _, x := range to.of[:to.n] {
		if more := int(x.cpus) - p.at.in(int(x.domain)); more > 0 {
			near := slices.ContainsFunc(p.at.of[:p.at.n], func(y onDomain) bool { return e.numa[y.domain] == e.numa[x.domain] })
			if !near {
				more *= crossNUMA
			}
			cost += more
		}
	}
	if cost > e.costMax {
		return
	}
	score, whole := s.score, s.whole
	change := func(d, before, after int) {
		score += after*after - before*before
		if before == e.size[d] {
			whole--
		}
		if after == e.size[d] {
			whole++
		}
	}
	for _, x := range p.at.of[:p.at.n] {
		if d := int(x.domain); to.in(d) == 0 {
			change(d, int(s.idle[d]), int(idle[d]))
		}
	}
	for _, x := range to.of[:to.n] {
		d := int(x.domain)
		change(d, int(s.idle[d]), int(idle[d])-int(x.cpus))
	}
	lacking := e.start - whole
	if lacking > beamBelow {
		return
	}
	if e.goal == toGather {
		for m := range e.numas {
			after := e.inEach[m] + e.cpusIn(&p.at, m) - e.cpusIn(to, m)
			score += gatherNUMA * (after*after - e.inEach[m]*e.inEach[m])
		}
	}
	reached := e.goal == toFree && lacking < 0
	if value := score - gatherWorth*cost; e.goal == toGather && lacking <= 0 && value > e.best {
		e.best = value
		e.found = append(e.found, &layoutState{parent: s, pod: pod, from: p.at, to: *to, moves: s.moves + 1, cost: cost, whole: whole, score: score})
	}
	lacking = max(lacking, 0)
	if !reached && len(next[lacking]) == e.width {
		if last := next[lacking][e.width-1]; score < last.score || score == last.score && cost >= last.cost {
			return
		}
	}
	child := &layoutState{parent: s, pod: pod, from: p.at, to: *to, moves: s.moves + 1, cost: cost, whole: whole, score: score}
	if reached {
		e.found = append(e.found, child)
		return
	}
	for _, x := range to.of[:to.n] {
		holds[x.domain] += hashOf(p.cpus, int(x.cpus))
	}
	child.hash = e.hash(holds)
	for _, x := range to.of[:to.n] {
		holds[x.domain] -= hashOf(p.cpus, int(x.cpus))
	}
	if before, seen := e.seen[child.hash]; seen && before <= cost {
		return
	}
	next[lacking] = e.insert(next[lacking], child)
}

// within reports whether all CPUs are in the NUMA nodes that are considered.
func (e *exchange) within(c *cuts) bool {
	if e.only != nil {
		for _, x := range c.of[:c.n] {
			if !e.only[e.numa[x.domain]] {
				return false
			}
		}
	}
	return true
}

// subsets returns sets of NUMA nodes, those with the most idle CPUs first.
func (e *exchange) subsets(idle []int16) [][]bool {
	sums := e.idleByNUMA(idle)
	type subset struct {
		in  []bool
		sum int
	}
	var all []subset
	var add func(from, left, sum int, in []bool)
	add = func(from, left, sum int, in []bool) {
		if left == 0 {
			all = append(all, subset{slices.Clone(in), sum})
			return
		}
		for m := from; m < len(sums); m++ {
			in[m] = true
			add(m+1, left-1, sum+sums[m], in)
			in[m] = false
		}
	}
	if len(sums) > subsetSize && len(sums) <= subsetOf {
		add(0, subsetSize, 0, make([]bool, len(sums)))
	}
	slices.SortStableFunc(all, func(a, b subset) int { return b.sum - a.sum })
	var out [][]bool
	for _, s := range all[:min(len(all), subsetsMost)] {
		if s.sum >= e.size[0] {
			out = append(out, s.in)
		}
	}
	return out
}

// numasOf returns the number of NUMA nodes.
func (e *exchange) numasOf(c *cuts) int {
	n := 0
	for i, x := range c.of[:c.n] { // in ascending order of domains, and so of NUMA nodes
		if i == 0 || e.numa[x.domain] != e.numa[c.of[i-1].domain] {
			n++
		}
	}
	return n
}

// cpusIn returns the number of CPUs in a NUMA node.
func (e *exchange) cpusIn(c *cuts, m int) int {
	sum := 0
	for _, x := range c.of[:c.n] {
		if e.numa[x.domain] == m {
			sum += int(x.cpus)
		}
	}
	return sum
}

// better reports whether a state has larger gaps, or the same for less.
func better(a, b *layoutState) bool {
	return a.score > b.score || a.score == b.score && a.cost < b.cost
}

// insert adds a state to the best ones, which are in order, unless there is an equal one as cheap.
func (e *exchange) insert(kept []*layoutState, s *layoutState) []*layoutState {
	if i := slices.IndexFunc(kept, func(o *layoutState) bool { return o.hash == s.hash }); i >= 0 {
		if kept[i].cost <= s.cost {
			return kept
		}
		kept = slices.Delete(kept, i, i+1)
	}
	at := len(kept)
	for at > 0 && better(s, kept[at-1]) {
		at--
	}
	kept = slices.Insert(kept, at, s)
	return kept[:min(len(kept), e.width)]
}

// exchange plans moves that free one more L3 domain, by a beam search, and reports whether it has found
// any. If one over the whole node finds none, and the node is nearly full, others consider a few NUMA nodes
// each: in place of the many states that differ only elsewhere, they keep more that matter.
func (p *planner) exchange() bool {
	e, first := newExchange(p.node, p.request, p.budget)
	if e.most <= e.start {
		return false
	}
	e.width = beamWidth
	if p.carryOutBest(e, first, beamMoves) {
		return true
	}
	if !full(p.node) {
		return false
	}
	e.width = subsetWidth
	for _, in := range e.subsets(first.idle) {
		e.only = in
		clear(e.seen)
		if p.carryOutBest(e, first, beamMoves) {
			return true
		}
	}
	return false
}

// gather plans moves that bring gaps together, if there are pods of more than a domain, and reports whether it
// has found any. Smaller pods find room in any NUMA node.
func (p *planner) gather() bool {
	e, first := newExchange(p.node, p.request, p.budget)
	if e.largest <= slices.Min(e.size) || !idleAtMost(p.node, gatherAlways) && slices.Max(e.idleByNUMA(first.idle)) >= e.largest {
		return false
	}
	e.goal, e.width, e.best = toGather, gatherWidth, first.score
	return p.carryOutBest(e, first, gatherMoves)
}

// idleByNUMA returns the number of idle CPUs of each NUMA node.
func (e *exchange) idleByNUMA(idle []int16) []int {
	sums := make([]int, len(e.numas))
	for d, n := range idle {
		sums[e.numa[d]] += int(n)
	}
	return sums
}

// carryOutBest adds the moves that a search finds to the plan, and reports whether it has found any.
func (p *planner) carryOutBest(e *exchange, first *layoutState, movesMax int) bool {
	if p.budget.MovesMax > 0 {
		movesMax = min(movesMax, p.budget.MovesMax-len(p.plan.Moves))
	}
	e.run(first, movesMax)
	for _, s := range e.found {
		if moves, after := p.exchanged(e, s); moves != nil {
			p.node = after
			p.plan.Moves = append(p.plan.Moves, moves...)
			return true
		}
	}
	e.found = nil
	return false
}

// exchanged chooses the CPUs for the moves that lead to a state. It returns nil if a pod would be worse
// off.
func (p *planner) exchanged(e *exchange, s *layoutState) ([]Move, *allocate.Node) {
	after := p.node.Clone()
	domains := after.Layout().L3Domains()
	var moves []Move
	for _, step := range s.path() {
		from := after.Pod(e.pods[step.pod].allocation.Key)
		held := from.CPUs()
		choose := func() cpuset.Set {
			idle := after.Idle()
			if x := step.to.of[0]; step.to.n == 1 && !held.Overlaps(domains[x.domain]) {
				return domains[x.domain].Intersect(idle)
			}
			var cpus cpuset.Set
			for _, x := range step.to.of[:step.to.n] {
				mine, want := held.Intersect(domains[x.domain]), int(x.cpus)
				switch {
				case mine.Len() == want:
					cpus = cpus.Union(mine)
				case mine.Len() > want:
					cpus = cpus.Union(wholeCores(after.Layout().Topology().Cores, mine, want))
				default:
					cpus = cpus.Union(wholeCores(after.Layout().Topology().Cores, idle.Intersect(domains[x.domain]), want))
				}
			}
			return cpus
		}
		to := p.carry(after, from, choose)
		if to == nil {
			return nil, nil
		}
		moves = append(moves, Move{from.Key, from, to})
	}
	if after.IdleL3() < s.whole {
		return nil, nil
	}
	return moves, after
}

// carry moves a pod to CPUs that choose returns when the pod's own are idle. It returns nil if the pod
// would be worse off.
func (p *planner) carry(after *allocate.Node, from *allocate.Allocation, choose func() cpuset.Set) *allocate.Allocation {
	r := p.request(from.Key)
	company := after.Company(r, from.CPUs())
	l3, numas := after.Spans(from.CPUs())
	after.Release(from.Key)
	to, err := p.al.PlanWithin(after, from.Key, r, choose())
	if err != nil || to.Cost.Violations > from.Cost.Violations || after.Restore(to) != nil {
		return nil
	}
	if l, u := after.Spans(to.CPUs()); l > l3 || u > numas || after.Company(r, to.CPUs()) > company {
		return nil
	}
	return to
}
