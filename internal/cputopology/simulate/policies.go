package simulate

import (
	"cmp"
	"math/bits"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/repack"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// Own is the policy of an installed Lockstep: pods are moved within their nodes. OwnWithoutMoves is
// the same policy if moves are forbidden.
const (
	Own             = "lockstep"
	OwnWithoutMoves = "lockstep-without-moves"
)

// Policies returns new instances of all policies. They keep no state between simulations that
// affects their choices.
func Policies() []Policy {
	return []Policy{
		newRepacking(Own),
		newLockstep(OwnWithoutMoves, request.AnyCPU),
		newLockstep(OwnWithoutMoves+"-threads", request.Threads),
		&byHand{name: "first-fit", node: firstFit, pick: lowestNumbers},
		&byHand{name: "least-allocated+packed-cores", node: leastAllocated, pick: packedCores},
		&byHand{name: "most-allocated+packed-cores", node: mostAllocated, pick: packedCores},
		&byHand{name: "kubelet-static-like", node: leastAllocated, pick: KubeletLike},
		&byHand{name: "kubelet-static-uncore-like", node: leastAllocated, pick: kubeletUncoreLike},
		&byHand{name: "kubelet-static-distribute-like", node: leastAllocated, pick: kubeletDistributeLike},
	}
}

// lockstep is the allocator as the scheduler uses it.
type lockstep struct {
	name     string
	bind     request.Bind
	al       allocate.Allocator
	requests map[int]*allocate.Request // by size
}

func newLockstep(name string, bind request.Bind) *lockstep {
	return &lockstep{name: name, bind: bind, requests: map[int]*allocate.Request{}}
}

func (p *lockstep) Name() string { return p.name }

func (p *lockstep) Place(nodes []*allocate.Node, key string, cpus int) (int, bool) {
	r := p.requests[cpus]
	if r == nil {
		var err error
		r, err = allocate.NewRequest(
			&request.Pod{Containers: []request.Container{{Name: "c", CPUs: cpus,
				Policy: request.Policy{Share: 1, Bind: p.bind}}}})
		if err != nil {
			return 0, false
		}
		p.requests[cpus] = r
	}
	node, _, err := p.al.Place(nodes, key, r, nil)
	return node, err == nil
}

// repacking is lockstep with moves within nodes after each change. The choice of nodes takes the
// moves into account.
type repacking struct{ *lockstep }

func newRepacking(name string) *repacking {
	p := &repacking{newLockstep(name, request.AnyCPU)}
	p.al.Repacks = true
	return p
}

// Maintain makes the planned moves for one node.
func (p *repacking) Maintain(n *allocate.Node) (pods, cpus int) {
	plan := repack.Within(n, func(key string) *allocate.Request {
		return p.requests[n.Pod(key).CPUs().Len()]
	}, repack.Budget{})
	for _, m := range plan.Moves {
		cpus += m.To.CPUs().Minus(m.From.CPUs()).Len()
		n.Release(m.Pod)
		if err := n.Restore(m.To); err != nil {
			panic(err) // the moves of a plan go to idle CPUs
		}
	}
	return len(plan.Moves), cpus
}

// byHand is a policy in two steps, as in schedulers whose choice of nodes does not consider cores.
type byHand struct {
	name string
	node func(nodes []*allocate.Node, cpus int) int
	pick func(topo *cputopology.Topology, idle cpuset.Set, cpus int) cpuset.Set
}

func (p *byHand) Name() string { return p.name }

func (p *byHand) Place(nodes []*allocate.Node, key string, cpus int) (int, bool) {
	i := p.node(nodes, cpus)
	if i < 0 {
		return 0, false
	}
	n := nodes[i]
	set := p.pick(n.Layout().Topology(), n.Idle(), cpus)
	err := n.Restore(&allocate.Allocation{Key: key,
		Containers: []allocate.ContainerCPUs{{Name: "c", CPUs: set, Held: set, Share: 1}}})
	return i, err == nil
}

func firstFit(nodes []*allocate.Node, cpus int) int {
	return slices.IndexFunc(nodes, func(n *allocate.Node) bool { return n.IdleCPUs() >= cpus })
}

func leastAllocated(nodes []*allocate.Node, cpus int) int {
	best := -1
	for i, n := range nodes {
		if n.IdleCPUs() >= cpus && (best < 0 || n.IdleCPUs() > nodes[best].IdleCPUs()) {
			best = i
		}
	}
	return best
}

func mostAllocated(nodes []*allocate.Node, cpus int) int {
	best := -1
	for i, n := range nodes {
		if n.IdleCPUs() >= cpus && (best < 0 || n.IdleCPUs() < nodes[best].IdleCPUs()) {
			best = i
		}
	}
	return best
}

func lowestNumbers(_ *cputopology.Topology, idle cpuset.Set, cpus int) cpuset.Set {
	return firstOf(idle.IDs(), cpus)
}

func firstOf(ids []int, cpus int) cpuset.Set { return cpuset.Of(ids[:cpus]...) }

// idleCores returns the entirely idle cores within a set, in the topology's order.
func idleCores(topo *cputopology.Topology, idle, within cpuset.Set) []cpuset.Set {
	var out []cpuset.Set
	for _, c := range topo.Cores {
		if c.SubsetOf(idle) && c.SubsetOf(within) {
			out = append(out, c)
		}
	}
	return out
}

func flat(cores []cpuset.Set) []int {
	var ids []int
	for _, c := range cores {
		ids = append(ids, c.IDs()...)
	}
	return ids
}

// packedCores chooses like schedulers that pack entirely free cores and do not know L3 domains: the
// NUMA node with the most free cores if it holds the pod, else such a socket, else cores and
// threads from the freest places.
func packedCores(topo *cputopology.Topology, idle cpuset.Set, cpus int) cpuset.Set {
	var numas, sockets []cpuset.Set
	for _, n := range topo.NUMA {
		numas = append(numas, n.CPUs)
	}
	for _, s := range topo.Sockets {
		sockets = append(sockets, s.CPUs)
	}
	for _, level := range [][]cpuset.Set{numas, sockets} {
		var best []int
		for _, domain := range level {
			if free := flat(idleCores(topo, idle, domain)); len(free) >= cpus && len(free) > len(best) {
				best = free
			}
		}
		if best != nil {
			return firstOf(best, cpus)
		}
	}
	slices.SortStableFunc(sockets, func(a, b cpuset.Set) int {
		return cmp.Compare(b.Intersect(idle).Len(), a.Intersect(idle).Len())
	})
	return fallback(topo, sockets, idle, cpus)
}

// KubeletLike chooses in the order of a node agent's static policy: whole sockets, then entirely
// free cores, then single threads, starting with the sockets with the fewest free CPUs.
func KubeletLike(topo *cputopology.Topology, idle cpuset.Set, cpus int) cpuset.Set {
	var taken cpuset.Set
	var sockets []cpuset.Set
	for _, s := range topo.Sockets {
		sockets = append(sockets, s.CPUs)
		if s.CPUs.SubsetOf(idle) && taken.Len()+s.CPUs.Len() <= cpus {
			taken = taken.Union(s.CPUs)
		}
	}
	left := idle.Minus(taken)
	slices.SortStableFunc(sockets, func(a, b cpuset.Set) int {
		return cmp.Compare(a.Intersect(left).Len(), b.Intersect(left).Len())
	})
	return taken.Union(fallback(topo, sockets, left, cpus-taken.Len()))
}

// fallback takes entirely free cores and then single threads, socket by socket.
func fallback(topo *cputopology.Topology, sockets []cpuset.Set, idle cpuset.Set, cpus int) cpuset.Set {
	var taken cpuset.Builder
	add := func(s cpuset.Set) {
		for id := range s.All() {
			taken.Add(id)
			cpus--
		}
		idle = idle.Minus(s)
	}
	for _, socket := range sockets {
		for _, c := range idleCores(topo, idle, socket) {
			if c.Len() <= cpus {
				add(c)
			}
		}
	}
	// The remaining number is less than a core, or no core is entirely free: take threads of
	// half-used cores before others.
	for _, wholeToo := range []bool{false, true} {
		for _, socket := range sockets {
			for _, c := range topo.Cores {
				if cpus == 0 {
					return taken.Set()
				}
				free := c.Intersect(idle)
				if c.SubsetOf(socket) && !free.IsEmpty() && (wholeToo || free.Len() < c.Len()) {
					add(firstOf(free.IDs(), min(cpus, free.Len())))
				}
			}
		}
	}
	return taken.Set()
}

// l3Sets returns the L3 domains as sets of CPUs.
func l3Sets(topo *cputopology.Topology) []cpuset.Set {
	var out []cpuset.Set
	for _, l := range topo.L3 {
		out = append(out, l.CPUs)
	}
	return out
}

// kubeletUncoreLike is KubeletLike with alignment to L3 domains: after whole sockets, entirely free
// L3 domains as long as the rest fills them, then the L3 domain with the fewest free CPUs that has
// room for the rest, in whole cores if that is possible. Without such a domain it chooses like
// KubeletLike.
func kubeletUncoreLike(topo *cputopology.Topology, idle cpuset.Set, cpus int) cpuset.Set {
	var taken cpuset.Set
	take := func(s cpuset.Set) { taken, idle, cpus = taken.Union(s), idle.Minus(s), cpus-s.Len() }
	for _, s := range topo.Sockets {
		if s.CPUs.SubsetOf(idle) && s.CPUs.Len() <= cpus {
			take(s.CPUs)
		}
	}
	domains := l3Sets(topo)
	fewestFirst := func() {
		slices.SortStableFunc(domains, func(a, b cpuset.Set) int {
			return cmp.Compare(a.Intersect(idle).Len(), b.Intersect(idle).Len())
		})
	}
	for _, d := range domains {
		if d.SubsetOf(idle) && d.Len() <= cpus {
			take(d)
		}
	}
	fewestFirst()
	for _, d := range domains {
		if free := d.Intersect(idle); cpus > 0 && free.Len() >= cpus {
			take(fallback(topo, []cpuset.Set{d}, free, cpus))
		}
	}
	if cpus == 0 {
		return taken
	}
	return taken.Union(KubeletLike(topo, idle, cpus))
}

// distributeNodesMax bounds the number of NUMA nodes of whose sets kubeletDistributeLike tries all.
const distributeNodesMax = 12

// kubeletDistributeLike spreads a pod evenly over the fewest NUMA nodes that have room for it, and
// of these sets takes the one after which the free CPUs of the NUMA nodes differ least. Within a
// NUMA node it chooses like KubeletLike, which it also is where no even distribution fits.
func kubeletDistributeLike(topo *cputopology.Topology, idle cpuset.Set, cpus int) cpuset.Set {
	var free []cpuset.Set
	for _, n := range topo.NUMA {
		if f := n.CPUs.Intersect(idle); !f.IsEmpty() {
			free = append(free, f)
		}
	}
	for count := 1; count <= len(free) && len(free) <= distributeNodesMax; count++ {
		best, bestSpread := 0, 0
		for set := 1; set < 1<<len(free); set++ {
			if bits.OnesCount(uint(set)) != count {
				continue
			}
			if spread, ok := spreadAfter(free, set, cpus); ok && (best == 0 || spread < bestSpread) {
				best, bestSpread = set, spread
			}
		}
		if best == 0 {
			continue
		}
		var taken cpuset.Set
		for i, share := range evenShares(best, cpus) {
			taken = taken.Union(KubeletLike(topo, free[i], share))
		}
		return taken
	}
	return KubeletLike(topo, idle, cpus)
}

// evenShares divides CPUs evenly over a set of NUMA nodes, given as bits.
func evenShares(set, cpus int) map[int]int {
	shares, left := map[int]int{}, bits.OnesCount(uint(set))
	for i := 0; left > 0; i++ {
		if set>>i&1 != 0 {
			shares[i] = (cpus + left - 1) / left
			cpus -= shares[i]
			left--
		}
	}
	return shares
}

// spreadAfter returns the sum of the squares of the free CPUs of all NUMA nodes after an even
// distribution over a set of them. Of sets of equal sum, the smallest has the most even rest.
func spreadAfter(free []cpuset.Set, set, cpus int) (int, bool) {
	shares, sum := evenShares(set, cpus), 0
	for i, f := range free {
		left := f.Len() - shares[i]
		if left < 0 {
			return 0, false
		}
		sum += left * left
	}
	return sum, true
}
