package allocate

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// refsMax bounds the number of containers on one CPU if the request sets no limit.
const refsMax = 1000

// Node holds the CPUs of one machine and their holders. It is not safe for concurrent use.
type Node struct {
	Name    string
	layout  *Layout
	pods    map[string]*Allocation
	version uint64 // number of changes

	refs      []uint16 // number of containers on each CPU
	limit     []uint16 // lowest share limit of the containers on each CPU; 0: none
	exclusive []uint64 // CPUs that one container holds alone, or that are kept free for its isolation
	// Counters that summarise the fields above; check recomputes them.
	idle       []uint64 // usable CPUs that no container holds
	cellIdle   []uint16 // idle CPUs by L3 domain
	cellWhole  []uint16 // entirely idle cores by L3 domain
	numaIdle   []uint16
	totalIdle  int
	sizes      []podSize
	memoryFree []int64 // bytes not promised to pods with local memory, by NUMA node of the layout

	touched []int // scratch space of change
}

// NewNode returns a node whose CPUs are all idle.
func NewNode(name string, l *Layout) *Node {
	n := &Node{Name: name, layout: l, pods: map[string]*Allocation{},
		refs: make([]uint16, len(l.cpus)), limit: make([]uint16, len(l.cpus)),
		exclusive: make([]uint64, len(l.usable)), idle: slices.Clone(l.usable),
		cellIdle: make([]uint16, len(l.cells)), cellWhole: make([]uint16, len(l.cells)),
		numaIdle:   make([]uint16, len(l.numas)),
		memoryFree: make([]int64, len(l.numas))}
	for i, m := range l.numas {
		n.memoryFree[i] = l.topo.NUMA[m.index].MemoryBytes
	}
	for c := range l.cells {
		n.recount(c)
	}
	return n
}

// Clone returns an independent copy. Allocations are immutable and shared.
func (n *Node) Clone() *Node {
	c := *n
	c.pods = maps.Clone(n.pods)
	c.refs, c.limit, c.exclusive, c.idle = slices.Clone(n.refs), slices.Clone(n.limit), slices.Clone(n.exclusive),
		slices.Clone(n.idle)
	c.cellIdle, c.cellWhole, c.numaIdle = slices.Clone(n.cellIdle), slices.Clone(n.cellWhole), slices.Clone(n.numaIdle)
	c.touched = nil
	c.sizes, c.memoryFree = slices.Clone(n.sizes), slices.Clone(n.memoryFree)
	return &c
}

// Allocation is the set of CPUs that one pod holds on a node. It is immutable.
type Allocation struct {
	Key string
	// Cost is the cost of the pod's most expensive group of containers.
	Cost       Cost
	Containers []ContainerCPUs
	// MemoryBytes is the memory promised to the pod on each NUMA node of its CPUs, by NUMA node id.
	MemoryBytes map[int]int64
}

// ContainerCPUs holds the CPUs of one container.
type ContainerCPUs struct {
	Name string
	Init bool
	CPUs cpuset.Set
	// Held are the CPUs withheld from others: CPUs and, with isolation, the rest of their domain.
	// It is empty for shared CPUs.
	Held cpuset.Set
	// Mems are the NUMA nodes to take memory from; empty means no preference.
	Mems   cpuset.Set
	Share  int
	Burst  bool
	shadow bool // uses CPUs that are accounted to other containers of the pod
}

// CPUs returns the union of the containers' CPUs.
func (a *Allocation) CPUs() cpuset.Set {
	var s cpuset.Set
	for _, c := range a.Containers {
		s = s.Union(c.CPUs)
	}
	return s
}

// Layout returns the machine's layout.
func (n *Node) Layout() *Layout { return n.layout }

// Pod returns the pod's allocation, or nil.
func (n *Node) Pod(key string) *Allocation { return n.pods[key] }

// Pods returns all allocations, sorted by key.
func (n *Node) Pods() []*Allocation {
	var out []*Allocation
	for _, key := range slices.Sorted(maps.Keys(n.pods)) {
		out = append(out, n.pods[key])
	}
	return out
}

// Idle returns the set of CPUs that may be given out and that no pinned container uses.
func (n *Node) Idle() cpuset.Set { return n.toSet(n.idle) }

// IdleCPUs returns the number of CPUs in Idle.
func (n *Node) IdleCPUs() int { return n.totalIdle }

// IdleL3 returns the number of entirely idle L3 domains.
func (n *Node) IdleL3() int {
	whole := 0
	for c := range n.layout.cells {
		whole += boolInt(n.cellIsIdle(c))
	}
	return whole
}

// Spans returns the numbers of L3 domains and NUMA nodes that a set of CPUs uses.
func (n *Node) Spans(cpus cpuset.Set) (l3, numas int) {
	l := n.layout
	lastL3, lastNUMA := -1, -1
	for i, id := range l.cpus { // in order of own numbers, so that each domain is a run
		if !cpus.Contains(id) {
			continue
		}
		if c := l.cellAt(i); c != lastL3 {
			l3++
			lastL3 = c
			if m := l.cells[c].numa; m != lastNUMA {
				numas++
				lastNUMA = m
			}
		}
	}
	return l3, numas
}

// FewestNUMA returns the smallest number of NUMA nodes that together have count idle CPUs. ok is
// false if all of them have fewer.
func (n *Node) FewestNUMA(count int) (numas int, ok bool) {
	return fewestOf(n.numaIdle, count), n.totalIdle >= count
}

// FewestL3 returns the smallest number of L3 domains, in at most numas NUMA nodes, that together
// have count idle CPUs. ok is false if there is no such choice.
func (n *Node) FewestL3(count, numas int) (l3 int, ok bool) {
	if n.totalIdle < count {
		return 0, false
	}
	l := n.layout
	if l.tree != nil {
		return n.fewestL3(count, numas)
	}
	idle := make([]uint16, 0, len(l.cells))
	for _, set := range l.subsets[min(numas, len(l.numas))] {
		idle = idle[:0]
		room := 0
		for _, i := range set.numas {
			idle = append(idle, n.cellIdle[l.numas[i].cells.lo:l.numas[i].cells.hi]...)
			room += int(n.numaIdle[i])
		}
		if room >= count {
			if used := fewestOf(idle, count); !ok || used < l3 {
				l3, ok = used, true
			}
		}
	}
	return l3, ok
}

// fewestL3 is FewestL3 for machines of many NUMA nodes.
func (n *Node) fewestL3(count, numas int) (l3 int, ok bool) {
	l := n.layout
	numas, most := min(numas, len(l.numas)), min(count, len(l.cells))
	cpus := make([][]int, numas+1) // by numbers of NUMA nodes and of L3 domains: the most idle CPUs
	for i := range cpus {
		cpus[i] = make([]int, most+1)
	}
	for _, m := range l.numas {
		idle := slices.Clone(n.cellIdle[m.cells.lo:m.cells.hi])
		slices.Sort(idle)
		for i := numas; i > 0; i-- {
			for j := most; j > 0; j-- {
				sum := 0
				for k := 1; k <= min(j, len(idle)); k++ {
					sum += int(idle[len(idle)-k])
					cpus[i][j] = max(cpus[i][j], cpus[i-1][j-k]+sum)
				}
			}
		}
	}
	for j, room := range cpus[numas] {
		if room >= count {
			return j, true
		}
	}
	return 0, false
}

// fewestOf returns how many of the sizes, largest first, add up to count, or the number of all sizes
// if they do not.
func fewestOf[T int | uint16](sizes []T, count int) int {
	sizes = slices.Clone(sizes)
	slices.Sort(sizes)
	room, used := 0, 0
	for _, s := range slices.Backward(sizes) {
		if room >= count {
			break
		}
		room += int(s)
		used++
	}
	return used
}

// SharedPool returns the CPUs for all containers that are not pinned: all that no container holds
// exclusively, including the reserved CPUs.
func (n *Node) SharedPool() cpuset.Set {
	return n.layout.topo.Online().Minus(n.layout.topo.Isolated).Minus(n.toSet(n.exclusive))
}

// Exclusive returns the CPUs that one container holds alone, or that are kept free for its
// isolation.
func (n *Node) Exclusive() cpuset.Set { return n.toSet(n.exclusive) }

// Effective returns the CPU set to apply for a container. It is the container's own CPUs or, for a
// burst container, the L3 domains of its CPUs, except for CPUs held exclusively. It shrinks and
// grows as exclusive containers come and go.
func (n *Node) Effective(c ContainerCPUs) cpuset.Set {
	if !c.Burst {
		return c.CPUs
	}
	var wide cpuset.Builder
	for _, cell := range n.layout.cells {
		touched := false
		for i := cell.lo; i < cell.hi && !touched; i++ {
			touched = c.CPUs.Contains(n.layout.cpus[i])
		}
		for i := cell.lo; touched && i < cell.hi; i++ {
			if has(n.layout.usable, i) && !has(n.exclusive, i) {
				wide.Add(n.layout.cpus[i])
			}
		}
	}
	return wide.Set().Union(c.CPUs)
}

// Result returns the allocation in the form that is written on the pod.
func (n *Node) Result(a *Allocation) request.Result {
	r := request.Result{Version: 1, Node: n.Name, Topology: n.layout.hash, Memory: a.MemoryBytes,
		Containers: map[string]request.ContainerResult{}}
	for _, c := range a.Containers {
		out := request.ContainerResult{CPUs: c.CPUs, Share: c.Share, Burst: c.Burst, Init: c.Init, Shadow: c.shadow}
		if !c.Mems.IsEmpty() {
			out.Mems = &c.Mems
		}
		if !c.Held.IsEmpty() && !c.Held.Equal(c.CPUs) {
			out.Held = &c.Held
		}
		r.Containers[c.Name] = out
	}
	return r
}

// Restore gives a pod CPUs that were chosen earlier: read back from its annotation after a restart,
// or pinned by the kubelet's static policy. It fails, changing nothing, if the CPUs do not exist or
// collide with exclusive ones.
func (n *Node) Restore(a *Allocation) error {
	if n.pods[a.Key] != nil {
		return fmt.Errorf("allocate: pod %s already holds CPUs on node %s", a.Key, n.Name)
	}
	var mine cpuset.Set // exclusive CPUs of the pod's containers so far
	for _, c := range a.Containers {
		all := c.CPUs.Union(c.Held)
		if missing := all.Minus(n.layout.topo.Online()); !missing.IsEmpty() {
			return fmt.Errorf("allocate: pod %s container %s: node %s has no CPUs %s", a.Key, c.Name, n.Name, missing)
		}
		if c.shadow {
			continue
		}
		for id := range all.All() {
			i := int(n.layout.own[id])
			if has(n.exclusive, i) || c.Share == 1 && n.refs[i] > 0 || mine.Contains(id) || n.refs[i] >= refsMax {
				return fmt.Errorf("allocate: pod %s container %s: CPU %d of node %s is taken", a.Key, c.Name, id, n.Name)
			}
		}
		if c.Share == 1 {
			mine = mine.Union(all)
		}
	}
	n.apply(a)
	return nil
}

// FromResult rebuilds an allocation from the result written on the pod. Its Cost is not known.
func FromResult(key string, r request.Result) *Allocation {
	a := &Allocation{Key: key, MemoryBytes: r.Memory}
	for _, name := range slices.Sorted(maps.Keys(r.Containers)) {
		c := r.Containers[name]
		part := ContainerCPUs{Name: name, Init: c.Init, CPUs: c.CPUs, Share: c.Share, Burst: c.Burst, shadow: c.Shadow}
		if c.Share == 1 && !c.Shadow {
			part.Held = c.CPUs
		}
		if c.Held != nil {
			part.Held = *c.Held
		}
		if c.Mems != nil {
			part.Mems = *c.Mems
		}
		a.Containers = append(a.Containers, part)
	}
	return a
}

// Release takes back the CPUs of a pod, and reports whether it held any.
func (n *Node) Release(key string) bool {
	a := n.pods[key]
	if a == nil {
		return false
	}
	delete(n.pods, key)
	n.change(a, -1)
	return true
}

// Rename changes the key of a pod's allocation. The new key must not be in use.
func (n *Node) Rename(from, to string) {
	if a := n.pods[from]; a != nil && n.pods[to] == nil {
		renamed := *a
		renamed.Key = to
		delete(n.pods, from)
		n.pods[to] = &renamed
	}
}

func (n *Node) apply(a *Allocation) {
	n.pods[a.Key] = a
	n.change(a, +1)
}

// change adds (+1) or removes (-1) an allocation.
func (n *Node) change(a *Allocation, sign int) {
	l := n.layout
	n.version++
	relimit := false
	last := -1
	// Sets are in order of CPU numbers, so the CPUs of a domain form one or two runs.
	touch := func(i int) {
		if c := l.cellAt(i); c != last {
			if last = c; !slices.Contains(n.touched, c) {
				n.touched = append(n.touched, c)
			}
		}
	}
	n.touched = n.touched[:0]
	for _, c := range a.Containers {
		if c.shadow {
			continue
		}
		for id := range c.CPUs.All() {
			i := int(l.own[id])
			n.refs[i] = uint16(int(n.refs[i]) + sign)
			touch(i)
			if sign > 0 && c.Share > 1 && (n.limit[i] == 0 || int(n.limit[i]) > c.Share) {
				n.limit[i] = uint16(c.Share)
			}
		}
		relimit = relimit || sign < 0 && c.Share > 1
		if c.Share != 1 {
			continue
		}
		for id := range c.Held.All() {
			i := int(l.own[id])
			put(n.exclusive, i, sign > 0)
			touch(i)
		}
	}
	if relimit {
		n.recomputeLimits()
	}
	for _, c := range n.touched {
		n.recount(c)
	}
	n.countSize(a, sign)
	for id, bytes := range a.MemoryBytes {
		for i, m := range l.numas {
			if l.topo.NUMA[m.index].ID == id {
				n.memoryFree[i] -= int64(sign) * bytes
			}
		}
	}
}

func (n *Node) recomputeLimits() {
	clear(n.limit)
	for _, a := range n.pods {
		for _, c := range a.Containers {
			if c.shadow || c.Share <= 1 {
				continue
			}
			for id := range c.CPUs.All() {
				if i := n.layout.own[id]; n.limit[i] == 0 || int(n.limit[i]) > c.Share {
					n.limit[i] = uint16(c.Share)
				}
			}
		}
	}
}

// recount brings idle and the counters of one L3 domain up to date with refs and exclusive.
func (n *Node) recount(c int) {
	l := n.layout
	cell := l.cells[c]
	idle, whole := 0, 0
	for core := cell.cores.lo; core < cell.cores.hi; core++ {
		k := l.cores[core]
		free := 0
		for i := k.lo; i < k.hi; i++ {
			is := n.refs[i] == 0 && !has(n.exclusive, i) && has(l.usable, i)
			put(n.idle, i, is)
			free += boolInt(is)
		}
		idle += free
		whole += boolInt(free == k.len())
	}
	delta := idle - int(n.cellIdle[c])
	n.cellIdle[c], n.cellWhole[c] = uint16(idle), uint16(whole)
	n.numaIdle[cell.numa] = uint16(int(n.numaIdle[cell.numa]) + delta)
	n.totalIdle += delta
}

func (n *Node) cellIsIdle(c int) bool { return int(n.cellIdle[c]) == n.layout.cells[c].len() }

func (n *Node) numaIsIdle(i int) bool { return int(n.numaIdle[i]) == n.layout.numas[i].len() }

// check recomputes every counter and returns an error for the first that differs.
func (n *Node) check() error {
	fresh := NewNode(n.Name, n.layout)
	for _, key := range slices.Sorted(maps.Keys(n.pods)) {
		fresh.apply(n.pods[key])
	}
	total := 0
	for _, w := range n.idle {
		total += bits.OnesCount64(w)
	}
	switch {
	case !slices.Equal(fresh.refs, n.refs):
		return fmt.Errorf("refs differ: %v, want %v", n.refs, fresh.refs)
	case !slices.Equal(fresh.limit, n.limit):
		return fmt.Errorf("limit differs: %v, want %v", n.limit, fresh.limit)
	case !slices.Equal(fresh.exclusive, n.exclusive):
		return fmt.Errorf("exclusive differs")
	case !slices.Equal(fresh.idle, n.idle):
		return fmt.Errorf("idle differs")
	case !slices.Equal(fresh.cellIdle, n.cellIdle) || !slices.Equal(fresh.cellWhole, n.cellWhole) ||
		!slices.Equal(fresh.numaIdle, n.numaIdle):
		return fmt.Errorf("a domain's counters differ")
	case !slices.Equal(fresh.sizes, n.sizes):
		return fmt.Errorf("sizes differ: %v, want %v", n.sizes, fresh.sizes)
	case fresh.totalIdle != n.totalIdle || total != n.totalIdle:
		return fmt.Errorf("totalIdle is %d, want %d", n.totalIdle, total)
	case !slices.Equal(fresh.memoryFree, n.memoryFree):
		return fmt.Errorf("memoryFree differs")
	}
	return nil
}

// cellAt returns the L3 domain of an own number.
func (l *Layout) cellAt(i int) int { return int(l.cellOf[i]) }

func (n *Node) toSet(words []uint64) cpuset.Set {
	var b cpuset.Builder
	for i, id := range n.layout.cpus {
		if has(words, i) {
			b.Add(id)
		}
	}
	return b.Set()
}

func has(words []uint64, i int) bool { return words[i>>6]>>(i&63)&1 != 0 }

func put(words []uint64, i int, on bool) {
	if on {
		words[i>>6] |= 1 << (i & 63)
	} else {
		words[i>>6] &^= 1 << (i & 63)
	}
}

// IdlePerL3 returns the number of idle CPUs in each of the layout's L3Domains.
func (n *Node) IdlePerL3() []int {
	out := make([]int, len(n.cellIdle))
	for i, v := range n.cellIdle {
		out[i] = int(v)
	}
	return out
}

// Company returns the number of cores that the pod's CPUs share with other pods, as the cost counts
// them. It is 0 for a pod that binds by threads. In an L3 domain that gives an odd number of CPUs,
// the odd CPU may share its core if oddShares.
func (n *Node) Company(r *Request, cpus cpuset.Set) int {
	l := n.layout
	a := &r.groups[0].asks[0]
	if a.bind == request.Threads {
		return 0
	}
	company, shared, taken, last := 0, 0, 0, -1
	endCell := func() {
		if oddShares(l, a) {
			shared = max(0, shared-taken%2)
		}
		company += shared
		shared, taken = 0, 0
	}
	for k, core := range l.cores {
		mine, others := 0, 0
		for i := core.lo; i < core.hi; i++ {
			switch {
			case cpus.Contains(l.cpus[i]):
				mine++
			case n.refs[i] > 0 || has(n.exclusive, i):
				others++
			}
		}
		if mine == 0 {
			continue
		}
		if c := l.cellAt(l.cores[k].lo); c != last {
			endCell()
			last = c
		}
		taken += mine
		shared += boolInt(others > 0)
	}
	endCell()
	return company
}
