package allocate

import (
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// Request is a pod's request, prepared for allocation. It is immutable; pods with equal requests
// should share it.
type Request struct {
	pod    *request.Pod
	groups []group
	cpus   int // sum over groups
}

// group is a group of containers whose CPUs are chosen as one set and then divided, which puts them
// closer together than separate choices would.
type group struct {
	containers []int // indices into pod.Containers
	cpus       int
	asks       []ask // best first
}

// NewRequest prepares a parsed request.
func NewRequest(pod *request.Pod) (*Request, error) {
	if len(pod.Containers) == 0 {
		return nil, fmt.Errorf("allocate: the pod pins no container")
	}
	r := &Request{pod: pod}
	initCPUs := 0
	for i, c := range pod.Containers {
		if c.CPUs < 1 || c.CPUs > maxCPUs {
			return nil, fmt.Errorf("allocate: container %s asks for %d CPUs, want 1 to %d", c.Name, c.CPUs, maxCPUs)
		}
		if c.Init {
			initCPUs = max(initCPUs, c.CPUs)
			continue
		}
		r.add(i)
	}
	if len(r.groups) == 0 { // only init containers are pinned: the largest stands for all
		largest := 0
		for i, c := range pod.Containers {
			if c.CPUs == initCPUs {
				largest = i
			}
		}
		r.add(largest)
	}
	for _, g := range r.groups {
		r.cpus += g.cpus
	}
	// An init container is larger than the rest: the pod holds as many CPUs as it needs.
	if extra := initCPUs - r.cpus; extra > 0 {
		r.groups[0].cpus += extra
		r.cpus = initCPUs
	}
	for i := range r.groups {
		g := &r.groups[i]
		var memory int64
		for _, c := range g.containers {
			memory += pod.Containers[c].MemoryBytes
		}
		g.asks = asks(g.cpus, memory, pod.Containers[g.containers[0]].Policy)
	}
	if r.cpus > maxCPUs {
		return nil, fmt.Errorf("allocate: the pod asks for %d CPUs, above the limit of %d", r.cpus, maxCPUs)
	}
	// The largest set has the fewest possible places, so it is chosen first.
	slices.SortStableFunc(r.groups, func(a, b group) int { return b.cpus - a.cpus })
	return r, nil
}

func (r *Request) add(i int) {
	c := r.pod.Containers[i]
	for k := range r.groups {
		g := &r.groups[k]
		if r.pod.PodWide || r.pod.Containers[g.containers[0]].Policy == c.Policy && divisible(c.Policy) {
			g.containers = append(g.containers, i)
			g.cpus += c.CPUs
			return
		}
	}
	r.groups = append(r.groups, group{containers: []int{i}, cpus: c.CPUs})
}

// divisible reports whether every part of a set that satisfies the policy also satisfies it.
func divisible(p request.Policy) bool {
	wish := func(f request.Fields) bool { return p.Prefer&f != 0 }
	return (p.Span == request.AnySpan || wish(request.SpanField)) && p.Isolation == request.NoIsolation &&
		(p.Bind != request.FullCore && p.Bind != request.WholeL3 || wish(request.BindField))
}

// CPUs returns the number of CPUs that the pod holds in all.
func (r *Request) CPUs() int { return r.cpus }

// UnfitError means that no node, or not the one requested node, can take a request at present.
type UnfitError struct {
	// Want describes the set of CPUs that is not available, in words that stay the same while the
	// cause does.
	Want string
}

func (e *UnfitError) Error() string { return "no node has " + e.Want }

// want describes an ask in words.
func (a *ask) want() string {
	what := fmt.Sprintf("%d free CPUs", a.cpus)
	switch {
	case a.bind == request.WholeL3:
		what += " in entirely free L3 domains"
	case a.fullCore:
		what += " in entirely free cores"
	}
	if a.cores != request.AnyCores {
		what += fmt.Sprintf(" of %s cores", a.cores)
	}
	switch a.span {
	case request.SingleL3:
		what += " within one L3 domain"
	case request.SingleNUMA:
		what += " within one NUMA node"
	case request.SingleSocket:
		what += " within one socket"
	case request.FewestNUMA:
		what += " within the fewest NUMA nodes that have as many"
	}
	if a.isolation != request.NoIsolation {
		what += fmt.Sprintf(", with no other pinned container in their %s", map[request.Isolation]string{
			request.IsolateCore: "cores", request.IsolateL3: "L3 domains", request.IsolateNUMA: "NUMA nodes"}[a.isolation])
	}
	if a.local {
		what += fmt.Sprintf(", with %d MiB of unpromised memory next to them", a.memory>>20)
	}
	return what
}

// build turns the sets chosen for the groups into the pod's allocation. n is the node before the
// allocation is applied.
func (s *solver) build(n *Node, key string, r *Request, sets []cpuset.Set, given []*ask, worst Cost) *Allocation {
	out := &Allocation{Key: key, Cost: worst}
	all := cpuset.Set{}
	parts := make([]ContainerCPUs, len(r.pod.Containers))
	for k, g := range r.groups {
		all = all.Union(sets[k])
		s.divide(n, r, g, sets[k], given[k], parts)
		if given[k].local {
			out.promise(n, sets[k], given[k].memory)
		}
	}
	for i, c := range r.pod.Containers {
		if !parts[i].CPUs.IsEmpty() {
			out.Containers = append(out.Containers, parts[i])
			continue
		}
		// An init container runs before the others, on the CPUs that they will have.
		cpus := all
		if !r.pod.PodWide {
			cpus = s.within(n, all, c.CPUs)
		}
		out.Containers = append(out.Containers,
			ContainerCPUs{Name: c.Name, Init: true, CPUs: cpus, Share: c.Share, Burst: c.Burst, shadow: true})
	}
	return out
}

// divide gives each container of a group its part of the group's set.
func (s *solver) divide(n *Node, r *Request, g group, set cpuset.Set, a *ask, parts []ContainerCPUs) {
	var mems cpuset.Set
	if a.local {
		mems = n.numaIDs(set)
	}
	part := func(i int, cpus, held cpuset.Set, shadow bool) {
		c := r.pod.Containers[i]
		parts[i] = ContainerCPUs{Name: c.Name, Init: c.Init, CPUs: cpus, Held: held, Mems: mems, Share: c.Share,
			Burst: c.Burst, shadow: shadow}
	}
	if r.pod.PodWide || len(g.containers) == 1 {
		held := n.held(set, a)
		for k, i := range g.containers {
			cpus := set
			if !r.pod.PodWide && r.pod.Containers[i].CPUs < set.Len() {
				cpus = s.within(n, set, r.pod.Containers[i].CPUs)
			}
			if k == 0 && !cpus.Equal(set) && a.share != 1 {
				// CPUs that only an init container needs are held too; shared CPUs are held by
				// being counted.
				held = cpuset.Set{}
			}
			part(i, cpus, held, k > 0)
		}
		return
	}
	order := slices.Clone(g.containers)
	slices.SortStableFunc(order, func(a, b int) int { return r.pod.Containers[b].CPUs - r.pod.Containers[a].CPUs })
	left := set
	for k, i := range order {
		cpus := s.within(n, left, r.pod.Containers[i].CPUs)
		left = left.Minus(cpus)
		held := n.held(cpus, a)
		if k == len(order)-1 && a.share == 1 {
			held = held.Union(left)
		}
		part(i, cpus, held, false)
	}
}

// within chooses count CPUs of a set, close together.
func (s *solver) within(n *Node, set cpuset.Set, count int) cpuset.Set {
	if set.Len() <= count {
		return set
	}
	sub := NewNode("", n.layout)
	for i, id := range n.layout.cpus {
		put(sub.exclusive, i, !set.Contains(id))
	}
	for c := range n.layout.cells {
		sub.recount(c)
	}
	a := ask{cpus: count, share: 1}
	var takes []take
	if _, ok := s.solve(sub, &a, &takes, exactBudget); !ok {
		panic("allocate: a part of a set that was just chosen does not fit it")
	}
	return s.pick(takes)
}

// held returns an exclusive set expanded by its isolation domains, or the empty set for shared
// CPUs.
func (n *Node) held(set cpuset.Set, a *ask) cpuset.Set {
	if a.share != 1 {
		return cpuset.Set{}
	}
	if a.isolation == request.NoIsolation {
		return set
	}
	l := n.layout
	var b cpuset.Builder
	for id := range set.All() {
		i := int(l.own[id])
		domain := l.cores[l.coreOf[i]]
		switch a.isolation {
		case request.IsolateL3:
			domain = l.cells[l.cellAt(i)].span
		case request.IsolateNUMA:
			domain = l.numas[l.cells[l.cellAt(i)].numa].span
		}
		for k := domain.lo; k < domain.hi; k++ {
			b.Add(l.cpus[k])
		}
	}
	return b.Set()
}

// numaIDs returns the ids of the NUMA nodes of a set of CPUs.
func (n *Node) numaIDs(set cpuset.Set) cpuset.Set {
	var b cpuset.Builder
	for _, m := range n.layout.topo.NUMA {
		if m.CPUs.Overlaps(set) {
			b.Add(m.ID)
		}
	}
	return b.Set()
}

// promise books memory on the NUMA nodes of a set, in their order: on each as much as it has free,
// until bytes are booked.
func (a *Allocation) promise(n *Node, set cpuset.Set, bytes int64) {
	if a.MemoryBytes == nil {
		a.MemoryBytes = map[int]int64{}
	}
	for i, m := range n.layout.numas {
		node := n.layout.topo.NUMA[m.index]
		if !node.CPUs.Overlaps(set) {
			continue
		}
		part := min(bytes, max(0, n.memoryFree[i]-a.MemoryBytes[node.ID]))
		a.MemoryBytes[node.ID] += part
		bytes -= part
	}
}
