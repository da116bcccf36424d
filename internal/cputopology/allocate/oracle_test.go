package allocate

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// The oracle judges a set of CPUs by the definitions in the package documentation, CPU by CPU, and tries every set.

// cpuAt is what the oracle keeps of a CPU: where it is (with L3 domains cut at NUMA and socket borders) and who has it.
type cpuAt struct {
	id, core, numa, socket int
	l3                     [3]int
	idle, available        bool
	refs                   int
}

func view(n *Node, a *ask) []cpuAt {
	var out []cpuAt
	for _, c := range n.layout.topo.CPUs {
		i := int(n.layout.own[c.ID])
		usable := has(n.layout.usable, i)
		v := cpuAt{id: c.ID, core: c.Core, numa: c.NUMA, socket: c.Socket, l3: [3]int{c.NUMA, c.Socket, domainOf(c)}, refs: int(n.refs[i])}
		v.idle = usable && v.refs == 0 && !has(n.exclusive, i)
		most := refsMax
		for _, limit := range []int{a.share, int(n.limit[i])} {
			if limit > 0 {
				most = min(most, limit)
			}
		}
		v.available = usable && !has(n.exclusive, i) && v.refs < most
		out = append(out, v)
	}
	return out
}

// judge returns the cost of a set of indices into cpus, and whether it meets the ask.
func judge(n *Node, cpus []cpuAt, set []int, a *ask) (Cost, bool) {
	in := map[int]bool{}
	for _, i := range set {
		in[i] = true
		if !cpus[i].available {
			return Cost{}, false
		}
	}
	type domain struct{ size, idle, taken int }
	core, l3, numa, sockets := map[int]*domain{}, map[[3]int]*domain{}, map[int]*domain{}, map[int]bool{}
	for i, c := range cpus {
		for _, d := range []*domain{get(core, c.core), get(l3, c.l3), get(numa, c.numa)} {
			d.size++
			if c.idle {
				d.idle++
			}
			if in[i] {
				d.taken++
			}
		}
		if in[i] {
			sockets[c.socket] = true
		}
	}
	cost := Cost{Violations: int(a.violated)}
	var shared, split, doubled int
	for _, d := range core {
		if d.taken == 0 {
			continue
		}
		if a.isolation == request.IsolateCore && d.idle < d.size || a.fullCore && d.taken < d.size {
			return cost, false
		}
		shared += boolInt(d.idle < d.size)
		split += boolInt(d.idle == d.size && d.taken < d.size)
		doubled += d.taken - 1
	}
	switch a.bind {
	case request.Spread:
		cost.DoubledCores, cost.SharedCores = doubled, shared
	default:
		cost.SharedCores, cost.SplitCores = shared, split
	}
	if len(core) == len(cpus)/2 && a.bind == request.AnyCPU && a.share == 1 && !slices.ContainsFunc(slices.Collect(maps.Values(core)), func(d *domain) bool { return d.size != 2 }) {
		// The odd CPU of each L3 domain may share its core.
		cost.SharedCores = 0
		for key, d := range l3 {
			shared := 0
			for i, c := range cpus {
				if in[i] && c.l3 == key && core[c.core].idle < core[c.core].size {
					shared++ // no more than one thread of such a core is idle
				}
			}
			cost.SharedCores += max(0, shared-d.taken%2)
		}
	}
	scale := newFitScale(min(a.cpus, len(l3)))
	for key, d := range l3 {
		if d.taken == 0 {
			continue
		}
		if a.isolation == request.IsolateL3 && d.idle < d.size || a.bind == request.WholeL3 && d.taken < d.size {
			return cost, false
		}
		cost.L3++
		if a.burst {
			cost.WholeL3 += d.size - d.idle
		} else {
			cost.WholeL3 += boolInt(d.idle == d.size)
		}
		after := max(0, d.idle-d.taken)
		if after > 0 {
			cost.Fit += scale.open
		}
		var partly, partlyThen []int
		whole, wholeThen, largest := 0, 0, 0
		for other, o := range l3 {
			if other[0] != key[0] {
				continue
			}
			largest = max(largest, o.size)
			if o.idle == o.size {
				whole++
			} else {
				partly = append(partly, o.idle)
			}
			switch {
			case other == key:
				partlyThen = append(partlyThen, after)
			case o.idle == o.size:
				wholeThen++
			default:
				partlyThen = append(partlyThen, o.idle)
			}
		}
		putOff := 0
		for _, size := range sizesOn(n) {
			putOff += breaks(size, largest, partlyThen, wholeThen) - breaks(size, largest, partly, whole)
		}
		cost.Fit += min(max(0, putOff), scale.putOffMax)
		cost.Slack += after
	}
	var nodes []int
	var memory int64
	for i, d := range numa {
		if d.taken == 0 {
			continue
		}
		if a.isolation == request.IsolateNUMA && d.idle < d.size {
			return cost, false
		}
		nodes = append(nodes, i)
		cost.WholeNUMA += boolInt(d.idle == d.size)
		for k, m := range n.layout.numas {
			if m.index == i {
				memory += max(0, n.memoryFree[k])
			}
		}
	}
	cost.NUMANodes = len(nodes)
	for k, x := range nodes {
		for _, y := range nodes[:k] {
			x, y := max(x, y), min(x, y)
			cost.Distance += n.layout.topo.NUMA[x].Distances[y]
		}
	}
	for _, i := range set {
		cost.Refs += cpus[i].refs
	}
	switch a.span {
	case request.SingleL3:
		if cost.L3 > 1 {
			return cost, false
		}
	case request.SingleNUMA:
		if cost.NUMANodes > 1 {
			return cost, false
		}
	case request.SingleSocket:
		if len(sockets) > 1 {
			return cost, false
		}
	}
	return cost, !a.local || memory >= a.memory
}

// sizesOn lists the numbers of exclusive CPUs of the pods on a node, each once, the 16 smallest.
func sizesOn(n *Node) []int {
	seen := map[int]bool{}
	for _, a := range n.pods {
		cpus := 0
		for _, c := range a.Containers {
			if c.Share == 1 && !c.shadow {
				cpus += c.CPUs.Len()
			}
		}
		if cpus > 0 {
			seen[cpus] = true
		}
	}
	sizes := slices.Sorted(maps.Keys(seen))
	return sizes[:min(len(sizes), 16)]
}

// breaks is how many idle L3 domains a pod breaks into beyond those it fills.
func breaks(cpus, l3 int, partly []int, whole int) int {
	slices.Sort(partly)
	slices.Reverse(partly)
	partly = append(partly, 0, 0)
	switch rest := cpus % l3; {
	case rest == 0:
		return boolInt(whole < cpus/l3)
	case cpus < l3 && partly[0] >= cpus:
		return 0
	case cpus < l3:
		return 1
	case cpus < 2*l3 && partly[0]+partly[1] >= cpus:
		return 0
	case whole >= cpus/l3 && partly[0] >= rest:
		return 1
	}
	return 2
}

func get[K comparable, V any](m map[K]*V, k K) *V {
	if m[k] == nil {
		m[k] = new(V)
	}
	return m[k]
}

// oracle returns the least cost over all sets.
func oracle(n *Node, a *ask) (Cost, []int, bool) {
	cpus := view(n, a)
	var best cost
	var bestSet []int
	found := false
	var try func(from int, set []int)
	try = func(from int, set []int) {
		if len(set) == a.cpus {
			if c, ok := judge(n, cpus, set, a); ok && (!found || c.pack(a.bind).less(best)) {
				best, bestSet, found = c.pack(a.bind), slices.Clone(set), true
			}
			return
		}
		for i := from; i <= len(cpus)-(a.cpus-len(set)); i++ {
			if cpus[i].available {
				try(i+1, append(set, i))
			}
		}
	}
	try(0, nil)
	return best.unpack(a.bind), bestSet, found
}

// regular builds a machine of equal parts. l3 counts per NUMA node; 0 joins all NUMA nodes of a socket in one L3.
func regular(sockets, numas, l3s, cores, threads int) *cputopology.Topology {
	var p cputopology.Parts
	id := 0
	for s := range sockets {
		socket := id
		for range numas {
			node := id
			for range max(l3s, 1) {
				l3 := id
				for range cores {
					p.Cores = append(p.Cores, cpuset.Range(id, id+threads-1))
					id += threads
				}
				if l3s > 0 {
					p.L3 = append(p.L3, cputopology.L3{CPUs: cpuset.Range(l3, id-1)})
				}
			}
			p.NUMA = append(p.NUMA, cputopology.NUMANode{ID: len(p.NUMA), CPUs: cpuset.Range(node, id-1), MemoryBytes: 100})
		}
		p.Sockets = append(p.Sockets, cputopology.Socket{ID: s, CPUs: cpuset.Range(socket, id-1)})
		if l3s == 0 {
			p.L3 = append(p.L3, cputopology.L3{CPUs: cpuset.Range(socket, id-1)})
		}
	}
	for i := range p.NUMA {
		for j := range p.NUMA {
			d := 32
			switch {
			case i == j:
				d = 10
			case i/numas == j/numas:
				d = 12
			}
			p.NUMA[i].Distances = append(p.NUMA[i].Distances, d)
		}
	}
	t, err := cputopology.New(p)
	if err != nil {
		panic(err)
	}
	return t
}

// regulars is every regular machine of at most 12 CPUs.
func regulars() []*cputopology.Topology {
	var out []*cputopology.Topology
	for sockets := 1; sockets <= 12; sockets++ {
		for numas := 1; sockets*numas <= 12; numas++ {
			for l3s := 0; sockets*numas*max(l3s, 1) <= 12; l3s++ {
				for cores := 1; sockets*numas*max(l3s, 1)*cores <= 12; cores++ {
					for threads := 1; sockets*numas*max(l3s, 1)*cores*threads <= 12; threads++ {
						out = append(out, regular(sockets, numas, l3s, cores, threads))
					}
				}
			}
		}
	}
	return out
}

// irregular draws a machine of at most 12 CPUs with uneven NUMA nodes, L3 domains and cores, and distances at random.
func irregular(t *rapid.T) *cputopology.Topology {
	var p cputopology.Parts
	cpus := rapid.IntRange(1, 12).Draw(t, "CPUs")
	var l3, numa, socket []int
	flush := func(list *[]int) cpuset.Set {
		s := cpuset.Of(*list...)
		*list = nil
		return s
	}
	for id := 0; id < cpus; {
		threads := min(rapid.IntRange(1, 3).Draw(t, "threads"), cpus-id)
		p.Cores = append(p.Cores, cpuset.Range(id, id+threads-1))
		for range threads {
			l3, numa, socket = append(l3, id), append(numa, id), append(socket, id)
			id++
		}
		// Borders nest: an L3 may end inside a NUMA node, a NUMA node inside a socket.
		level := rapid.IntRange(0, 3).Draw(t, "border")
		if id == cpus {
			level = 3
		}
		if level >= 1 {
			if s := flush(&l3); rapid.IntRange(0, 9).Draw(t, "has L3") > 0 {
				p.L3 = append(p.L3, cputopology.L3{CPUs: s})
			}
		}
		if level >= 2 {
			p.NUMA = append(p.NUMA, cputopology.NUMANode{ID: 3 * len(p.NUMA), CPUs: flush(&numa), MemoryBytes: int64(rapid.IntRange(0, 100).Draw(t, "memory"))})
		}
		if level >= 3 {
			p.Sockets = append(p.Sockets, cputopology.Socket{ID: len(p.Sockets), CPUs: flush(&socket)})
		}
	}
	n := len(p.NUMA)
	distances := rapid.SliceOfN(rapid.IntRange(11, 40), n*n, n*n).Draw(t, "distances")
	for i := range n {
		for j := range n {
			d := distances[min(i, j)*n+max(i, j)]
			if i == j {
				d = 10
			}
			p.NUMA[i].Distances = append(p.NUMA[i].Distances, d)
		}
	}
	topo, err := cputopology.New(p)
	if err != nil {
		t.Fatalf("the drawn machine is wrong: %v", err)
	}
	return topo
}

// drawPolicy draws any policy that request.Parse can return.
func drawPolicy(t *rapid.T) request.Policy {
	p := request.Policy{
		Bind:   request.Bind(rapid.IntRange(0, 4).Draw(t, "bind")),
		Span:   request.Span(rapid.IntRange(0, 3).Draw(t, "span")),
		Share:  rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(t, "share"),
		Prefer: request.Fields(rapid.IntRange(0, 15).Draw(t, "prefer")),
	}
	if rapid.IntRange(0, 3).Draw(t, "has memory") == 0 {
		p.Memory = request.Memory(rapid.IntRange(0, 2).Draw(t, "memory"))
	}
	switch {
	case p.Share == 1:
		p.Isolation = request.Isolation(rapid.IntRange(0, 3).Draw(t, "isolation"))
	case p.Bind != request.WholeL3:
		p.Burst = rapid.Bool().Draw(t, "burst")
	}
	return p
}

// occupy fills a node at random: single CPUs, exclusive or shared, and reserved ones.
func occupy(t *rapid.T, topo *cputopology.Topology) *Node {
	var reserved cpuset.Builder
	state := make([]int, len(topo.CPUs))
	busy := rapid.IntRange(0, 3).Draw(t, "busy")
	for i, c := range topo.CPUs {
		if rapid.IntRange(0, 3).Draw(t, "taken") < busy {
			state[i] = rapid.IntRange(1, 5).Draw(t, "state")
		}
		if state[i] == 5 {
			reserved.Add(c.ID)
		}
	}
	l, err := NewLayout(topo, reserved.Set())
	if err != nil {
		t.Fatal(err)
	}
	n := NewNode("n", l)
	for i, c := range topo.CPUs {
		one := cpuset.Of(c.ID)
		add := func(key string, part ContainerCPUs) {
			part.CPUs = one
			if err := n.Restore(&Allocation{Key: fmt.Sprintf("%s%d", key, c.ID), Containers: []ContainerCPUs{part}}); err != nil {
				t.Fatal(err)
			}
		}
		switch state[i] {
		case 1, 2:
			add("exclusive", ContainerCPUs{Share: 1, Held: one})
		case 3:
			add("shared", ContainerCPUs{Share: 3})
		case 4:
			add("shared", ContainerCPUs{})
			add("again", ContainerCPUs{})
		}
	}
	return n
}

// againstOracle compares every ask of a policy on a node with the oracle, and the bound that Choose uses.
func againstOracle(t *rapid.T, n *Node, cpus int, p request.Policy) {
	var s solver
	for _, a := range asks(cpus, int64(rapid.IntRange(0, 150).Draw(t, "bytes")), p) {
		var takes []take
		got, ok := s.solve(n, &a, &takes, exactBudget)
		var set cpuset.Set
		if ok {
			set = s.pick(takes)
		}
		want, wantSet, wantOK := oracle(n, &a)
		describe := func() string {
			state := ""
			for _, c := range view(n, &a) {
				state += fmt.Sprintf("\n  %+v", c)
			}
			return fmt.Sprintf("ask %+v%s", a, state)
		}
		if ok != wantOK {
			t.Fatalf("found %v, the oracle %v %v\n%s", ok, wantOK, wantSet, describe())
		}
		var b solver
		bound, exact := b.bound(n, &a)
		if !ok {
			if !bound.isInfinite() && exact {
				t.Fatalf("the bound claims a choice where there is none\n%s", describe())
			}
			continue
		}
		if got.unpack(a.bind) != want {
			t.Fatalf("cost %+v of %s, the oracle has %+v of %v\n%s", got.unpack(a.bind), set, want, wantSet, describe())
		}
		var chosen []int
		all := view(n, &a)
		for i, c := range all {
			if set.Contains(c.id) {
				chosen = append(chosen, i)
			}
		}
		if len(chosen) != cpus {
			t.Fatalf("%d CPUs chosen (%s), want %d\n%s", len(chosen), set, cpus, describe())
		}
		if judged, fine := judge(n, all, chosen, &a); !fine || judged != want {
			t.Fatalf("the chosen CPUs %s cost %+v (%v), claimed %+v\n%s", set, judged, fine, want, describe())
		}
		a.violated = 0
		exactCost, _ := s.solve(n, &a, nil, exactBudget)
		if exactCost.less(bound) || exact && bound != exactCost {
			t.Fatalf("the bound %+v (exact: %v) is above the cost %+v\n%s", bound.unpack(a.bind), exact, exactCost.unpack(a.bind), describe())
		}
	}
}

func TestNeverWorseThanBruteForceOnRegularMachines(t *testing.T) {
	// Four machines share the draws of one check: about 25 for each machine, and more on request (-rapid.checks).
	for some := range slices.Chunk(regulars(), 4) {
		rapid.Check(t, func(t *rapid.T) {
			topo := some[rapid.IntRange(0, len(some)-1).Draw(t, "machine")]
			n := occupy(t, topo)
			againstOracle(t, n, rapid.IntRange(1, len(topo.CPUs)).Draw(t, "count"), drawPolicy(t))
		})
	}
}

func TestNeverWorseThanBruteForceOnIrregularMachines(t *testing.T) {
	for range 20 {
		rapid.Check(t, func(t *rapid.T) {
			topo := irregular(t)
			n := occupy(t, topo)
			againstOracle(t, n, rapid.IntRange(1, len(topo.CPUs)).Draw(t, "count"), drawPolicy(t))
		})
	}
}
