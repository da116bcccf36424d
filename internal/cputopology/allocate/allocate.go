package allocate

import (
	"cmp"
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// Budgets of work, in inner knapsack steps of about 2 ns each.
const (
	// exactBudget bounds the search through sets of NUMA nodes on one node. No machine reaches it
	// whose sets are listed (Layout.subsets).
	exactBudget = 20_000_000
	// chooseBudget bounds the work that Choose spends on exact costs of nodes whose summaries give
	// only a bound.
	chooseBudget = 500_000
)

// Allocator chooses CPUs and nodes. It holds only scratch memory and caches. The zero value is
// ready to use. It is not safe for concurrent use.
type Allocator struct {
	// Repacks means that pods are moved within their nodes to free L3 domains (package repack).
	// Then, among nodes that are equal in the cost terms up to the L3 domains used, the node is
	// chosen whose pods need the fewest domains when repacked, and that leaves most room for
	// similar pods (see packing.go).
	Repacks bool

	s          solver
	candidates []candidate
	known      map[ask][]knownCost
	packings   packings
}

// knownCost is the cached cost of an ask on a node, or its bound, for the state of the node at
// version. Few nodes change between two decisions, so with the cache a decision costs little more
// than one pass over the nodes.
type knownCost struct {
	node    *Node
	version uint64
	cost    cost
	exact   bool
	packed  added // set if the Allocator Repacks
}

// knownMax bounds the number of cached asks; when it is reached, all are dropped.
const knownMax = 64

// costsOf returns the cached costs of an ask, one entry for each node.
func (al *Allocator) costsOf(a *ask, nodes int) []knownCost {
	costs := al.known[*a]
	if len(costs) >= nodes {
		return costs
	}
	if al.known == nil || len(al.known) >= knownMax {
		al.known = map[ask][]knownCost{}
	}
	costs = make([]knownCost, nodes)
	al.known[*a] = costs
	return costs
}

// Plan chooses CPUs on a node without changing it. It returns an *UnfitError if the node cannot
// take the request at present.
func (al *Allocator) Plan(n *Node, key string, r *Request) (*Allocation, error) {
	if n.pods[key] != nil {
		return nil, fmt.Errorf("allocate: pod %s already holds CPUs on node %s", key, n.Name)
	}
	sets, given := make([]cpuset.Set, len(r.groups)), make([]*ask, len(r.groups))
	var worst Cost
	scratch := n
	for k := range r.groups {
		set, a, c, ok := al.choose(scratch, &r.groups[k])
		if !ok {
			return nil, &UnfitError{r.groups[k].asks[len(r.groups[k].asks)-1].want()}
		}
		sets[k], given[k] = set, a
		if k == 0 || worst.pack(request.AnyCPU).less(c.pack(request.AnyCPU)) {
			worst = c
		}
		if k+1 < len(r.groups) { // the next group takes other CPUs and memory, even if CPUs are shared
			part := &Allocation{Key: fmt.Sprintf("%s/%d", key, k),
				Containers: []ContainerCPUs{{CPUs: set, Held: set.Union(n.held(set, a)), Share: 1}}}
			if a.local {
				part.promise(scratch, set, a.memory)
			}
			scratch = scratch.Clone()
			scratch.apply(part)
		}
	}
	return al.s.build(n, key, r, sets, given, worst), nil
}

// choose chooses a group's CPUs, giving up as few wishes as possible.
func (al *Allocator) choose(n *Node, g *group) (cpuset.Set, *ask, Cost, bool) {
	var takes []take
	for i := range g.asks {
		a := &g.asks[i]
		if c, ok := al.s.solve(n, a, &takes, exactBudget); ok {
			return al.s.pick(takes), a, c.unpack(a.bind), true
		}
	}
	return cpuset.Set{}, nil, Cost{}, false
}

// Allocate makes a Plan and applies it to the node.
func (al *Allocator) Allocate(n *Node, key string, r *Request) (*Allocation, error) {
	a, err := al.Plan(n, key, r)
	if err != nil {
		return nil, err
	}
	n.apply(a)
	return a, nil
}

// Possible returns an *UnfitError if no node could take the request even if nothing ran on it.
func (al *Allocator) Possible(layouts []*Layout, r *Request) error {
	var err error = &UnfitError{"a known CPU topology"}
	for _, l := range layouts {
		if _, err = al.Plan(NewNode("", l), "", r); err == nil {
			return nil
		}
	}
	return err
}

// candidate is a node that may take a request, with its cost or a lower bound of its cost.
type candidate struct {
	cost cost
	// later is, if pods are moved later, cost.sharedFirst above the laterBits of packings.later. It is
	// compared after cost.hi.
	later uint32
	node  int32
	// idle is the number of idle CPUs: among equal nodes the fullest wins, to keep others free,
	// unless pods are moved later.
	idle  int32
	exact bool
}

// compareCost compares the costs of two candidates, including the effects of repacking.
func (c candidate) compareCost(d candidate) int {
	return cmp.Or(cmp.Compare(c.cost.hi, d.cost.hi), cmp.Compare(c.later, d.later), cmp.Compare(c.cost.lo, d.cost.lo))
}

func (c candidate) compare(d candidate) int {
	return cmp.Or(c.compareCost(d), cmp.Compare(c.idle, d.idle), cmp.Compare(c.node, d.node))
}

// Choose returns the index of the node that takes the request at the lowest cost; among equal nodes
// the fullest, then the first. allowed, if not nil, restricts the nodes. Choose returns an
// *UnfitError if no node can take the request.
//
// Nodes are compared by their summaries. If a summary gives only a bound of the cost, the exact
// cost is computed, for the most promising nodes first, until the best node is known or
// chooseBudget is used up. In the latter case Choose returns the best node of those whose cost it
// has computed.
func (al *Allocator) Choose(nodes []*Node, r *Request, allowed func(i int) bool) (int, error) {
	// A pod with several groups is ranked by its largest group. The other groups are then tried on
	// the nodes in that order.
	g := &r.groups[0]
	for i := range g.asks {
		a := &g.asks[i]
		if node := al.chooseFor(nodes, r, a, allowed); node >= 0 {
			return node, nil
		}
	}
	return -1, &UnfitError{g.asks[len(g.asks)-1].want()}
}

func (al *Allocator) chooseFor(nodes []*Node, r *Request, a *ask, allowed func(i int) bool) int {
	best := candidate{cost: infinite, node: -1}
	open := al.candidates[:0]
	costs := al.costsOf(a, len(nodes))
	packs := al.Repacks && a.share == 1
	if packs {
		al.packings.see(nodes)
	}
	for i, n := range nodes {
		if a.share == 1 && n.totalIdle < r.cpus || allowed != nil && !allowed(i) {
			continue
		}
		known := &costs[i]
		if known.node != n || known.version != n.version {
			*known = knownCost{node: n, version: n.version}
			known.cost, known.exact = al.s.bound(n, a)
			if packs {
				known.packed = al.packings.with(i, a.cpus)
			}
		}
		if known.cost.isInfinite() {
			continue
		}
		k := candidate{cost: known.cost, node: int32(i), idle: int32(n.totalIdle), exact: known.exact && len(r.groups) == 1}
		if packs {
			k.later = k.cost.sharedFirst(a.bind)<<laterBits | al.packings.later(i, known.packed.onNode(n, k.cost, a.bind))
			k.idle = -k.idle // prefer the emptiest node, because moves need room
		}
		switch {
		case !k.exact:
			if best.node < 0 || best.compareCost(k) >= 0 {
				open = append(open, k)
			}
		case best.node < 0 || k.compare(best) < 0:
			best = k
		}
	}
	al.candidates = open
	al.refine(nodes, r, a, costs, &best)
	return int(best.node)
}

// refine computes exact costs of the open candidates, most promising first, as long as one of them
// may still win.
func (al *Allocator) refine(nodes []*Node, r *Request, a *ask, costs []knownCost, best *candidate) {
	open := slices.DeleteFunc(al.candidates, func(c candidate) bool { return best.node >= 0 && best.compareCost(c) < 0 })
	slices.SortFunc(open, candidate.compare)
	limit := al.s.work + chooseBudget
	for _, k := range open {
		if best.node >= 0 && (best.compareCost(k) < 0 || al.s.work > limit) {
			return
		}
		known := &costs[k.node]
		if !known.exact {
			c, ok := al.s.solve(nodes[k.node], a, nil, exactBudget)
			if ok {
				// The violations are the same for all nodes compared here.
				c.hi &^= uint64(a.violated) << shiftViolations
			}
			known.cost, known.exact = c, true
		}
		if k.cost = known.cost; al.Repacks {
			packed := known.packed.onNode(nodes[k.node], k.cost, a.bind)
			k.later = k.cost.sharedFirst(a.bind)<<laterBits | al.packings.later(int(k.node), packed)
		}
		if k.cost.isInfinite() || best.node >= 0 && k.compare(*best) >= 0 {
			continue
		}
		if len(r.groups) > 1 { // the other groups must fit as well
			if _, err := al.Plan(nodes[k.node], "", r); err != nil {
				continue
			}
		}
		*best = k
	}
}

// bound returns the cost of an ask on a node if the node's summaries determine it (exact), or else
// a lower bound. The cost is infinite if the node certainly cannot take the ask.
func (s *solver) bound(n *Node, a *ask) (cost, bool) {
	least := cost{1<<shiftNUMA | 1, 0}
	if !n.layout.uniform {
		return least, false
	}
	s.begin(n, a, true, -1)
	best, exact, total := infinite, true, 0
	for i := range n.layout.numas {
		total += s.numaCap[i]
		if s.numaCap[i] < a.cpus || !s.memoryFits([]int{i}) {
			continue
		}
		one := cost{uint64(1) << shiftNUMA, uint64(boolInt(n.numaIsIdle(i))) << shiftWholeNUMA(a.bind)}
		cell, c := s.singleCell(i)
		if cell < 0 {
			if a.span == request.SingleL3 {
				continue
			}
			c = s.cellsBound(i)
		}
		if c = c.plus(one); c.less(best) {
			best, exact = c, cell >= 0
		}
	}
	switch {
	case !best.isInfinite():
		return best, exact
	case a.share != 1:
		return s.refsBound(n, a), false
	case n.layout.inOneNUMANode(a) || total < a.cpus:
		return infinite, true
	}
	if a.cpus%s.grain() != 0 {
		return infinite, true
	}
	if tree := n.layout.tree; tree != nil {
		size := max(2, fewestOf(s.numaCap, a.cpus))
		return Cost{NUMANodes: size, Distance: tree.nearest[size]}.pack(a.bind), false
	}
	for size := 2; size < len(n.layout.subsets); size++ {
		for _, set := range n.layout.subsets[size] {
			if s.roomIn(set) {
				return Cost{NUMANodes: size, Distance: set.distance}.pack(a.bind), false
			}
		}
	}
	return infinite, true
}

// refsBound returns a lower bound of the cost of a shared request for which idle CPUs do not
// suffice: the number of containers on the CPUs with the fewest containers.
func (s *solver) refsBound(n *Node, a *ask) cost {
	s.begin(n, a, false, -1)
	least := func(lo, hi int) (refs int, ok bool) {
		// Number of CPUs, by the containers on them; the last entry stands for more.
		var with [64]int
		for i := lo; i < hi; i++ {
			if s.available(i) {
				with[min(int(n.refs[i]), len(with)-1)]++
			}
		}
		left := a.cpus
		for r, count := range with {
			refs += r * min(left, count)
			left -= min(left, count)
		}
		return refs, left == 0
	}
	best := infinite
	for _, m := range n.layout.numas {
		if refs, ok := least(m.lo, m.hi); ok {
			if c := (Cost{NUMANodes: 1, Refs: refs, L3: 1}).pack(a.bind); c.less(best) {
				best = c
			}
		}
	}
	if refs, ok := least(0, len(n.layout.cpus)); ok && best.isInfinite() {
		return Cost{NUMANodes: 2, Refs: refs, L3: 1}.pack(a.bind)
	}
	return best
}

// cellsBound returns a lower bound of the cost of a choice over several L3 domains of a NUMA node:
// the smallest number of domains that hold the CPUs, and among such choices the smallest number of
// entirely idle ones.
func (s *solver) cellsBound(i int) cost {
	m := s.n.layout.numas[i]
	var used, whole []int
	var usedBuf, wholeBuf [64]int
	used, whole = usedBuf[:0], wholeBuf[:0]
	for c := m.cells.lo; c < m.cells.hi; c++ {
		switch e := s.eligible[c]; {
		case e == 0:
		case s.n.cellIsIdle(c) && !s.a.burst:
			whole = append(whole, e)
		default:
			used = append(used, e)
		}
	}
	descending := func(a, b int) int { return b - a }
	slices.SortFunc(used, descending)
	slices.SortFunc(whole, descending)
	// Fewest domains: take the largest first, from both lists.
	count, room, u, w := 0, 0, 0, 0
	for room < s.a.cpus && (u < len(used) || w < len(whole)) {
		if w < len(whole) && (u == len(used) || whole[w] >= used[u]) {
			room += whole[w]
			w++
		} else {
			room += used[u]
			u++
		}
		count++
	}
	// Replace idle domains by used ones as long as the room suffices.
	for w > 0 && u < len(used) && room-whole[w-1]+used[u] >= s.a.cpus {
		room += used[u] - whole[w-1]
		w--
		u++
	}
	return cost{uint64(count), uint64(w) << shiftWholeL3(s.a.bind)}
}

// Place chooses a node for a pod and allocates CPUs there.
func (al *Allocator) Place(nodes []*Node, key string, r *Request, allowed func(i int) bool) (int, *Allocation, error) {
	i, err := al.Choose(nodes, r, allowed)
	if err != nil {
		return -1, nil, err
	}
	a, err := al.Allocate(nodes[i], key, r)
	return i, a, err
}
