package allocate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// The oracle judges a set of CPUs by the definitions in the package documentation, CPU by CPU, and
// tries every set.

// cpuAt is the oracle's view of a CPU: its position (with L3 domains cut at NUMA and socket
// borders) and its use.
type cpuAt struct {
	id, core, l3, numa, socket int // all except id and socket count from 0 in order of appearance
	idle, available            bool
	refs                       int
}

// domain is a core, an L3 domain or a NUMA node.
type domain struct{ size, idle, taken, numa int }

// machineView is the oracle's view of a node.
type machineView struct {
	n                *Node
	cpus             []cpuAt
	core, l3, numa   []domain
	numaIndex        []int   // index in the topology
	memory           []int64 // by NUMA node
	sizes            []int   // of the pods on the node
	threads          int     // number of threads of every core, 0 if they differ or are of several kinds
	partly, partlyTo []int   // scratch
}

func view(n *Node, a *ask) *machineView {
	v := &machineView{n: n, sizes: sizesOn(n)}
	cores, l3s, numas := map[int]int{}, map[[3]int]int{}, map[int]int{}
	for _, c := range n.layout.topo.CPUs {
		i := int(n.layout.own[c.ID])
		usable := has(n.layout.usable, i)
		at := cpuAt{id: c.ID, core: number(cores, c.Core), numa: number(numas, c.NUMA), l3: number(l3s, [3]int{c.NUMA, c.Socket, domainOf(c)}),
			socket: c.Socket, refs: int(n.refs[i])}
		at.idle = usable && at.refs == 0 && !has(n.exclusive, i)
		most := refsMax
		for _, limit := range []int{a.share, int(n.limit[i])} {
			if limit > 0 {
				most = min(most, limit)
			}
		}
		at.available = usable && !has(n.exclusive, i) && at.refs < most &&
			(a.cores == request.AnyCores || c.Efficient == (a.cores == request.EfficientCores))
		v.cpus = append(v.cpus, at)
		for _, in := range []struct {
			domains *[]domain
			at      int
		}{{&v.core, at.core}, {&v.l3, at.l3}, {&v.numa, at.numa}} {
			if in.at == len(*in.domains) {
				*in.domains = append(*in.domains, domain{numa: at.numa})
			}
			d := &(*in.domains)[in.at]
			d.size++
			d.idle += boolInt(at.idle)
		}
		if at.numa == len(v.numaIndex) {
			v.numaIndex, v.memory = append(v.numaIndex, c.NUMA), append(v.memory, 0)
			for k, m := range n.layout.numas {
				if m.index == c.NUMA {
					v.memory[at.numa] = max(0, n.memoryFree[k])
				}
			}
		}
	}
	v.threads = v.core[0].size
	for _, d := range v.core {
		if d.size != v.threads || !n.layout.topo.Efficient.IsEmpty() {
			v.threads = 0
		}
	}
	return v
}

// number numbers keys in order of appearance.
func number[K comparable](seen map[K]int, key K) int {
	if _, ok := seen[key]; !ok {
		seen[key] = len(seen)
	}
	return seen[key]
}

// take marks a set of indices into cpus as taken (1), or as no longer taken (-1).
func (v *machineView) take(set []int, sign int) {
	for _, i := range set {
		c := &v.cpus[i]
		v.core[c.core].taken += sign
		v.l3[c.l3].taken += sign
		v.numa[c.numa].taken += sign
	}
}

// judge returns the cost of a set of indices into cpus, and whether the set satisfies the ask.
func (v *machineView) judge(set []int, a *ask) (Cost, bool) {
	for _, i := range set {
		if !v.cpus[i].available {
			return Cost{}, false
		}
	}
	v.take(set, 1)
	defer v.take(set, -1)
	cost := Cost{Violations: int(a.violated)}
	var shared, split, doubled int
	for _, d := range v.core {
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
	if v.threads == 2 && a.bind == request.AnyCPU && a.share == 1 {
		// The odd CPU of each L3 domain may share its core.
		cost.SharedCores = 0
		for k, d := range v.l3 {
			shared := 0
			for _, i := range set {
				if c := &v.cpus[i]; c.l3 == k && v.core[c.core].idle < v.core[c.core].size {
					shared++ // at most one thread of such a core is idle
				}
			}
			cost.SharedCores += max(0, shared-d.taken%2)
		}
	}
	scale := newFitScale(min(a.cpus, len(v.l3)))
	for k, d := range v.l3 {
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
		v.partly, v.partlyTo = v.partly[:0], v.partlyTo[:0]
		whole, wholeThen, largest := 0, 0, 0
		for other, o := range v.l3 {
			if o.numa != d.numa {
				continue
			}
			largest = max(largest, o.size)
			if o.idle == o.size {
				whole++
			} else {
				v.partly = append(v.partly, o.idle)
			}
			switch {
			case other == k:
				v.partlyTo = append(v.partlyTo, after)
			case o.idle == o.size:
				wholeThen++
			default:
				v.partlyTo = append(v.partlyTo, o.idle)
			}
		}
		putOff := 0
		for _, size := range v.sizes {
			putOff += breaks(size, largest, v.partlyTo, wholeThen) - breaks(size, largest, v.partly, whole)
		}
		cost.Fit += min(max(0, putOff), scale.putOffMax)
		cost.Slack += after
	}
	var memory int64
	for x, d := range v.numa {
		if d.taken == 0 {
			continue
		}
		if a.isolation == request.IsolateNUMA && d.idle < d.size {
			return cost, false
		}
		cost.NUMANodes++
		cost.WholeNUMA += boolInt(d.idle == d.size)
		memory += v.memory[x]
		for y, o := range v.numa[:x] {
			if o.taken > 0 {
				i, j := v.numaIndex[x], v.numaIndex[y]
				cost.Distance += v.n.layout.topo.NUMA[max(i, j)].Distances[min(i, j)]
			}
		}
	}
	sockets := 0
	for k, i := range set {
		cost.Refs += v.cpus[i].refs
		sockets += boolInt(!slices.ContainsFunc(set[:k], func(j int) bool { return v.cpus[j].socket == v.cpus[i].socket }))
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
		if sockets > 1 {
			return cost, false
		}
	case request.FewestNUMA:
		if cost.NUMANodes > v.fewestNUMA(a) {
			return cost, false
		}
	}
	return cost, !a.local || memory >= a.memory
}

// fewestNUMA returns the smallest number of NUMA nodes that together have as many CPUs as the ask, of
// its kind, whoever uses them: by trying all sets of NUMA nodes.
func (v *machineView) fewestNUMA(a *ask) int {
	l, size := v.n.layout, map[int]int{}
	for i, id := range l.cpus {
		if !l.reserved.Contains(id) && !l.topo.Isolated.Contains(id) && (a.cores == request.AnyCores ||
			l.topo.Efficient.Contains(id) == (a.cores == request.EfficientCores)) {
			size[l.cells[l.cellAt(i)].numa]++
		}
	}
	fewest := len(l.numas) + 1
	for set := range 1 << len(l.numas) {
		count, room := 0, 0
		for numa := range l.numas {
			if set>>numa&1 == 1 {
				count++
				room += size[numa]
			}
		}
		if room >= a.cpus {
			fewest = min(fewest, count)
		}
	}
	return fewest
}

// sizesOn lists the 16 smallest distinct numbers of exclusive CPUs of the pods on a node.
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

// breaks returns how many idle L3 domains a pod breaks into beyond those that it fills.
func breaks(cpus, l3 int, partly []int, whole int) int {
	var most [2]int // the two largest
	for _, p := range partly {
		if p > most[0] {
			p, most[0] = most[0], p
		}
		most[1] = max(most[1], p)
	}
	partly = most[:]
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

// oracle returns the lowest cost over all sets.
func oracle(v *machineView, a *ask) (Cost, []int, bool) {
	var best cost
	var bestSet []int
	found := false
	var try func(from int, set []int)
	try = func(from int, set []int) {
		if len(set) == a.cpus {
			if c, ok := v.judge(set, a); ok && (!found || c.pack(a.bind).less(best)) {
				best, bestSet, found = c.pack(a.bind), slices.Clone(set), true
			}
			return
		}
		for i := from; i <= len(v.cpus)-(a.cpus-len(set)); i++ {
			if v.cpus[i].available {
				try(i+1, append(set, i))
			}
		}
	}
	try(0, nil)
	return best.unpack(a.bind), bestSet, found
}

// regular builds a machine of equal parts. l3s counts L3 domains per NUMA node; 0 joins all NUMA
// nodes of a socket into one L3 domain.
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

// regulars returns every regular machine of at most 12 CPUs.
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

// irregular draws a machine of at most 12 CPUs with uneven NUMA nodes, L3 domains and cores, and
// random distances.
func irregular(t *rapid.T) *cputopology.Topology {
	var p cputopology.Parts
	cpus := rapid.IntRange(1, 12).Draw(t, "CPUs")
	kinds := rapid.IntRange(0, 2).Draw(t, "has kinds of cores") == 0
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
		if kinds && rapid.Bool().Draw(t, "efficient") {
			p.Efficient = p.Efficient.Union(p.Cores[len(p.Cores)-1])
		}
		// Borders nest: an L3 domain may end inside a NUMA node, a NUMA node inside a socket.
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
		Span:   request.Span(rapid.IntRange(0, 4).Draw(t, "span")),
		Share:  rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(t, "share"),
		Prefer: request.Fields(rapid.IntRange(0, 31).Draw(t, "prefer")),
	}
	if rapid.IntRange(0, 3).Draw(t, "has cores") == 0 {
		p.Cores = request.Cores(rapid.IntRange(0, 2).Draw(t, "cores"))
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

// occupy fills a node at random with single CPUs, exclusive, shared or reserved.
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

// fataler is the common part of testing.T and rapid.T that the tests use.
type fataler interface{ Fatalf(string, ...any) }

// againstOracle compares every ask of a policy on a node, and the bound that Choose uses, with the
// oracle.
func againstOracle(t fataler, n *Node, cpus int, bytes int64, p request.Policy) {
	var s solver
	for _, a := range asks(cpus, bytes, p) {
		var takes []take
		got, ok := s.solve(n, &a, &takes, exactBudget)
		var set cpuset.Set
		if ok {
			set = s.pick(takes)
		}
		v := view(n, &a)
		want, wantSet, wantOK := oracle(v, &a)
		describe := func() string {
			state := ""
			for _, c := range v.cpus {
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
		for i, c := range v.cpus {
			if set.Contains(c.id) {
				chosen = append(chosen, i)
			}
		}
		if len(chosen) != cpus {
			t.Fatalf("%d CPUs chosen (%s), want %d\n%s", len(chosen), set, cpus, describe())
		}
		if judged, fine := v.judge(chosen, &a); !fine || judged != want {
			t.Fatalf("the chosen CPUs %s cost %+v (%v), claimed %+v\n%s", set, judged, fine, want, describe())
		}
		a.violated = 0
		exactCost, _ := s.solve(n, &a, nil, exactBudget)
		if exactCost.less(bound) || exact && bound != exactCost {
			t.Fatalf("the bound %+v (exact: %v) is above the cost %+v\n%s", bound.unpack(a.bind), exact, exactCost.unpack(a.bind), describe())
		}
	}
}

// nested returns every machine with that many CPUs whose domains nest. Before each CPU but the
// first, a core, an L3 domain, a NUMA node or a socket may end, or none, so there are 5^(cpus-1)
// machines.
func nested(cpus int) []*cputopology.Topology {
	var out []*cputopology.Topology
	borders := make([]int, cpus)
	var draw func(i int)
	draw = func(i int) {
		if i < cpus {
			for borders[i] = range 5 {
				draw(i + 1)
			}
			return
		}
		var p cputopology.Parts
		from := [5]int{} // where the current core, L3 domain, NUMA node and socket began (1 to 4)
		for id := 1; id <= cpus; id++ {
			level := 4
			if id < cpus {
				level = borders[id]
			}
			ends := func(kind int) (cpuset.Set, bool) {
				if level < kind {
					return cpuset.Set{}, false
				}
				s := cpuset.Range(from[kind], id-1)
				from[kind] = id
				return s, true
			}
			if s, ok := ends(1); ok {
				p.Cores = append(p.Cores, s)
			}
			if s, ok := ends(2); ok {
				p.L3 = append(p.L3, cputopology.L3{CPUs: s})
			}
			if s, ok := ends(3); ok {
				p.NUMA = append(p.NUMA, cputopology.NUMANode{ID: len(p.NUMA), CPUs: s, MemoryBytes: int64(40 * s.Len())})
			}
			if s, ok := ends(4); ok {
				p.Sockets = append(p.Sockets, cputopology.Socket{ID: len(p.Sockets), CPUs: s})
			}
		}
		for i := range p.NUMA {
			for j := range p.NUMA {
				p.NUMA[i].Distances = append(p.NUMA[i].Distances, 10+10*max(i-j, j-i))
			}
		}
		topo, err := cputopology.New(p)
		if err != nil {
			panic(err)
		}
		out = append(out, topo)
	}
	draw(1)
	return out
}

// policies returns every combination of the policy fields on which the choice on a node depends,
// without wishes, because wishes amount to the same conditions one after the other.
func policies() []request.Policy {
	var out []request.Policy
	for bind := range request.Bind(5) {
		for span := range request.Span(5) {
			for _, memory := range []request.Memory{request.AnyMemory, request.LocalMemory} {
				for isolation := range request.Isolation(4) {
					out = append(out, request.Policy{Bind: bind, Span: span, Isolation: isolation, Memory: memory, Share: 1})
				}
				for _, share := range []int{0, 2} {
					out = append(out, request.Policy{Bind: bind, Span: span, Memory: memory, Share: share})
					if bind != request.WholeL3 {
						out = append(out, request.Policy{Bind: bind, Span: span, Memory: memory, Share: share, Burst: true})
					}
				}
			}
		}
	}
	return out
}

// stateNode returns a node in the state that a number encodes, with one digit per CPU in the given
// base: 0 is idle, 1 held by a pod together with the neighbours in that state, 2 shared, 3
// reserved.
func stateNode(topo *cputopology.Topology, state, base int) *Node {
	var held, shared, reserved cpuset.Builder
	for _, c := range topo.CPUs {
		switch state % base {
		case 1:
			held.Add(c.ID)
		case 2:
			shared.Add(c.ID)
		case 3:
			reserved.Add(c.ID)
		}
		state /= base
	}
	l, err := NewLayout(topo, reserved.Set())
	if err != nil {
		panic(err)
	}
	n := NewNode("n", l)
	give := func(key string, part ContainerCPUs) {
		if !part.CPUs.IsEmpty() {
			if err := n.Restore(&Allocation{Key: key, Containers: []ContainerCPUs{part}}); err != nil {
				panic(err)
			}
		}
	}
	exclusive := held.Set()
	give("held", ContainerCPUs{CPUs: exclusive, Held: exclusive, Share: 1})
	give("shared", ContainerCPUs{CPUs: shared.Set(), Share: 3})
	return n
}

func power(base, exponent int) int {
	out := 1
	for range exponent {
		out *= base
	}
	return out
}

// TestNeverWorseThanBruteForceInAnyState tries every machine of a few CPUs, in every state, with
// every number of CPUs and every policy. LOCKSTEP_ORACLE=full takes larger machines and more
// states, and minutes.
func TestNeverWorseThanBruteForceInAnyState(t *testing.T) {
	bases := []int{0, 4, 4, 2} // number of states of each CPU, by the number of CPUs
	if os.Getenv("LOCKSTEP_ORACLE") == "full" {
		bases = []int{0, 4, 4, 4, 2}
	}
	cases := 0
	for cpus, base := range bases {
		if cpus == 0 {
			continue
		}
		for _, topo := range nested(cpus) {
			for state := range power(base, cpus) {
				n := stateNode(topo, state, base)
				for want := 1; want <= cpus; want++ {
					for _, p := range policies() {
						againstOracle(t, n, want, 60, p)
						cases++
					}
				}
			}
		}
	}
	t.Logf("%d cases", cases)
}

// TestNeverWorseThanBruteForceOnEveryMachine tries every machine of up to 5 CPUs whose domains
// nest, and every regular machine of up to 12 CPUs. For each, states, numbers of CPUs and policies
// are drawn evenly from all possible ones.
func TestNeverWorseThanBruteForceOnEveryMachine(t *testing.T) {
	const seed = 1
	most, draws := 4, 12
	if os.Getenv("LOCKSTEP_ORACLE") == "full" {
		most, draws = 6, 150
	}
	all := regulars()
	for cpus := 1; cpus <= most; cpus++ {
		all = append(all, nested(cpus)...)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	policies := policies()
	for _, topo := range all {
		cpus := len(topo.CPUs)
		for range draws {
			n := stateNode(topo, rng.IntN(power(4, cpus)), 4)
			if rng.IntN(2) == 0 {
				n = stateNode(topo, rng.IntN(power(2, cpus)), 2)
			}
			p := policies[rng.IntN(len(policies))]
			p.Prefer = request.Fields(rng.IntN(16))
			againstOracle(t, n, 1+rng.IntN(cpus), int64(rng.IntN(150)), p)
		}
	}
	t.Logf("%d machines, %d draws on each, seed %d", len(all), draws, seed)
}

func TestNeverWorseThanBruteForceOnIrregularMachines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topo := irregular(t)
		n := occupy(t, topo)
		for range 10 {
			againstOracle(t, n, rapid.IntRange(1, len(topo.CPUs)).Draw(t, "count"), int64(rapid.IntRange(0, 150).Draw(t, "bytes")), drawPolicy(t))
		}
	})
}
