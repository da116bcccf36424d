package allocate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// numaMachine is a machine whose NUMA nodes are L3 domains of that many cores with two threads.
func numaMachine(sockets, numaPerSocket, cores int) machines.Machine {
	return machines.Machine{Name: fmt.Sprintf("%dx%dx%d", sockets, numaPerSocket, 2*cores), Sockets: sockets,
		NUMAPerSocket: numaPerSocket, CoresPerSocket: numaPerSocket * cores, Threads: 2, CoresPerL3: cores, L3Bytes: 16 << 20,
		MemoryBytesPerNUMA: 16 << 30}
}

// TestPodsFillMachinesOfManyNUMANodes places exclusive pods on machines of many NUMA nodes until fewer
// CPUs are idle than a pod needs: none is refused before.
func TestPodsFillMachinesOfManyNUMANodes(t *testing.T) {
	for _, c := range []struct {
		sockets, numaPerSocket, cores int
		sizes                         []int
	}{
		{2, 16, 4, []int{24}}, // 32 nodes of 8 CPUs
		{2, 12, 8, []int{64}}, // 24 of 16
		{2, 12, 8, []int{128, 64, 96}},
		{2, 8, 8, []int{80}}, // 16 of 16
		{8, 8, 2, []int{10}}, // 64 of 4
		{8, 8, 8, []int{100, 24, 17}},
		{1, 40, 1, []int{7}},
	} {
		m := numaMachine(c.sockets, c.numaPerSocket, c.cores)
		t.Run(fmt.Sprint(m.Name, c.sizes), func(t *testing.T) {
			n := node(t, m, "")
			var al Allocator
			for i := 0; ; i++ {
				size := c.sizes[i%len(c.sizes)]
				_, a, err := al.Place([]*Node{n}, fmt.Sprint(i), exclusive(t, size), nil)
				if err != nil {
					if n.IdleCPUs() >= size {
						t.Fatalf("pod %d: %v; %d are idle", i, err, n.IdleCPUs())
					}
					return
				}
				if a.CPUs().Len() != size {
					t.Fatalf("pod %d has %d CPUs", i, a.CPUs().Len())
				}
			}
		})
	}
}

// TestContainersShareASetOverManyNUMANodes divides a set over many NUMA nodes between the containers of
// a pod.
func TestContainersShareASetOverManyNUMANodes(t *testing.T) {
	n := node(t, numaMachine(2, 16, 4), "")
	one := request.Policy{Share: 1}
	var al Allocator
	for i := range 3 {
		a, err := al.Allocate(n, fmt.Sprint(i), prepared(t, request.Container{Name: "a", CPUs: 27, Policy: one},
			request.Container{Name: "b", CPUs: 50, Policy: one}))
		if err != nil {
			t.Fatal(err)
		}
		if got := a.CPUs().Len(); got != 77 {
			t.Errorf("pod %d has %d CPUs", i, got)
		}
	}
}

// TestNearNUMANodesOfMany checks which of many NUMA nodes a pod gets.
func TestNearNUMANodesOfMany(t *testing.T) {
	for name, c := range map[string]struct {
		sockets, numaPerSocket, cores int
		taken                         string
		cpus                          int
		want                          string
	}{
		"within a socket":                 {2, 16, 4, "", 24, "0-11,128-139"},
		"within the socket that has room": {2, 16, 4, "0-47,128-175", 64, "64-95,192-223"},
		"two sockets if one has too few":  {2, 16, 4, "0-59,128-187", 132, "60-125,188-253"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t, numaMachine(c.sockets, c.numaPerSocket, c.cores), "")
			if s := cpuset.MustParse(c.taken); !s.IsEmpty() {
				if err := n.Restore(&Allocation{Key: "before", Containers: []ContainerCPUs{{CPUs: s, Held: s, Share: 1}}}); err != nil {
					t.Fatal(err)
				}
			}
			var al Allocator
			a, err := al.Allocate(n, "pod", exclusive(t, c.cpus))
			if err != nil {
				t.Fatal(err)
			}
			if a.CPUs().String() != c.want {
				t.Errorf("got CPUs %s, want %s (cost %+v)", a.CPUs(), c.want, a.Cost)
			}
		})
	}
}

// againstSets compares the search over the tree with the one over all sets of NUMA nodes, on the same
// state of a machine. Both must agree on what fits; on machines whose distances are those of their
// tree, also on the cost, unless memory is a condition.
func againstSets(t fataler, sets, tree *Node, cpus int, bytes int64, p request.Policy) {
	var s solver
	for _, a := range asks(cpus, bytes, p) {
		want, wantOK := s.solve(sets, &a, nil, exactBudget)
		var takes []take
		got, ok := s.solve(tree, &a, &takes, exactBudget)
		if ok != wantOK {
			t.Fatalf("%+v on %v idle: found %v, with sets %v", a, sets.numaIdle, ok, wantOK)
		}
		bound, _ := s.bound(tree, &a)
		if !ok {
			continue
		}
		if got.less(want) || want != got && tree.layout.tree.exact && !a.local || got.unpack(a.bind).NUMANodes != want.unpack(a.bind).NUMANodes {
			t.Fatalf("%+v on %v idle: cost %+v, with sets %+v", a, sets.numaIdle, got.unpack(a.bind), want.unpack(a.bind))
		}
		got.hi &^= uint64(a.violated) << shiftViolations
		if got.less(bound) {
			t.Fatalf("%+v: the bound %+v is above the cost %+v", a, bound.unpack(a.bind), got.unpack(a.bind))
		}
		_, _ = s.solve(tree, &a, &takes, exactBudget)
		v := view(tree, &a)
		var chosen []int
		set := s.pick(takes)
		for i, c := range v.cpus {
			if set.Contains(c.id) {
				chosen = append(chosen, i)
			}
		}
		judged, fine := v.judge(chosen, &a)
		judged.Violations = 0
		if !fine || len(chosen) != cpus || judged != got.unpack(a.bind) {
			t.Fatalf("%+v: the chosen CPUs %s cost %+v (%v), claimed %+v", a, set, judged, fine, got.unpack(a.bind))
		}
	}
}

// withTree returns a copy of a node whose layout has a tree in place of sets of NUMA nodes.
func withTree(n *Node) *Node {
	l, err := newLayout(n.layout.topo, n.layout.reserved, 0)
	if err != nil {
		panic(err)
	}
	out := NewNode(n.Name, l)
	for _, a := range n.Pods() {
		if err := out.Restore(a); err != nil {
			panic(err)
		}
	}
	return out
}

// smallNUMAs returns every machine of 2 to 6 NUMA nodes of 2 to 4 CPUs, of those whose nodes are in
// order of size and in one, two or three sockets, with and without threads and several L3 domains in
// a node.
func smallNUMAs() []*cputopology.Topology {
	var out []*cputopology.Topology
	var sizes []int
	var draw func(numas, least int)
	draw = func(numas, least int) {
		if len(sizes) == numas {
			for sockets := 1; sockets <= min(3, numas); sockets++ {
				for shape := range 4 {
					out = append(out, numasOf(sizes, sockets, 1+shape%2, 1+shape/2))
				}
			}
			return
		}
		for size := least; size <= 4; size++ {
			sizes = append(sizes, size)
			draw(numas, size)
			sizes = sizes[:len(sizes)-1]
		}
	}
	for numas := 2; numas <= 6; numas++ {
		draw(numas, 2)
	}
	return out
}

// numasOf returns a machine with NUMA nodes of these sizes, dealt to sockets in turn, with cores of up
// to that many threads and up to two L3 domains in each node.
func numasOf(sizes []int, sockets, threads, l3s int) *cputopology.Topology {
	var p cputopology.Parts
	inSocket := make([]cpuset.Set, sockets)
	id := 0
	for i, size := range sizes {
		all := cpuset.Range(id, id+size-1)
		half := id + size - size/2
		if l3s == 2 {
			p.L3 = append(p.L3, cputopology.L3{CPUs: cpuset.Range(id, half-1)}, cputopology.L3{CPUs: cpuset.Range(half, id+size-1)})
		} else {
			p.L3 = append(p.L3, cputopology.L3{CPUs: all})
		}
		for end := id + size; id < end; {
			border := end
			if l3s == 2 && id < half {
				border = half
			}
			core := min(threads, border-id)
			p.Cores = append(p.Cores, cpuset.Range(id, id+core-1))
			id += core
		}
		n := cputopology.NUMANode{ID: i, CPUs: all, MemoryBytes: int64(10 * (1 + i%3))}
		for j := range sizes {
			switch {
			case i == j:
				n.Distances = append(n.Distances, 10)
			case i%sockets == j%sockets:
				n.Distances = append(n.Distances, 12)
			default:
				n.Distances = append(n.Distances, 32)
			}
		}
		p.NUMA = append(p.NUMA, n)
		inSocket[i%sockets] = inSocket[i%sockets].Union(all)
	}
	for i, s := range inSocket {
		p.Sockets = append(p.Sockets, cputopology.Socket{ID: i, CPUs: s})
	}
	topo, err := cputopology.New(p)
	if err != nil {
		panic(err)
	}
	return topo
}

// TestTheTreeFindsWhatSetsFind compares both searches on every machine of up to 6 NUMA nodes of 2 to 4
// CPUs, for every number of CPUs, in states and with policies drawn evenly. The search over sets is
// itself compared with every possible choice of CPUs elsewhere.
func TestTheTreeFindsWhatSetsFind(t *testing.T) {
	const seed = 1
	draws := 2
	if os.Getenv("LOCKSTEP_ORACLE") == "full" {
		draws = 200
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	policies := policies()
	cases := 0
	all := smallNUMAs()
	for _, topo := range all {
		cpus := len(topo.CPUs)
		for draw := range draws {
			var n *Node
			switch rng.IntN(4) * min(draw, 1) {
			case 0:
				n = stateNode(topo, 0, 2) // idle
			case 1:
				n = stateNode(topo, rng.IntN(power(4, cpus)), 4)
			default:
				n = stateNode(topo, rng.IntN(power(2, cpus))&rng.IntN(power(2, cpus)), 2)
			}
			tree := withTree(n)
			for want := 1; want <= cpus; want++ {
				p := policies[rng.IntN(len(policies))]
				if rng.IntN(2) == 0 {
					p = request.Policy{Share: 1}
				}
				againstSets(t, n, tree, want, int64(rng.IntN(100)), p)
				for numas := range len(n.layout.numas) + 1 {
					a, aOK := n.FewestL3(want, numas)
					if b, bOK := tree.FewestL3(want, numas); a != b || aOK != bOK {
						t.Fatalf("%v idle: %d CPUs in %d NUMA nodes take %d L3 domains (%v), with sets %d (%v)", n.cellIdle, want, numas, b, bOK, a, aOK)
					}
				}
				cases++
			}
		}
	}
	t.Logf("%d machines, %d cases, seed %d", len(all), cases, seed)
}

// TestTheTreeOnIrregularMachines does the same where distances are not those of a tree.
func TestTheTreeOnIrregularMachines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := occupy(t, irregular(t))
		tree := withTree(n)
		for range 10 {
			againstSets(t, n, tree, rapid.IntRange(1, len(n.layout.cpus)).Draw(t, "count"), int64(rapid.IntRange(0, 150).Draw(t, "bytes")),
				drawPolicy(t))
		}
	})
}

// TestWhateverFitsIsFoundOnManyNUMANodes lets pods come and go on machines of 16 to 64 NUMA nodes of
// any sizes and distances. A pod is refused only if fewer CPUs are idle than it needs; with local
// memory, only if the nodes with idle CPUs have too little.
func TestWhateverFitsIsFoundOnManyNUMANodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numas := rapid.IntRange(16, 64).Draw(t, "NUMA nodes")
		sizes := make([]int, numas)
		uniform := rapid.IntRange(0, 8).Draw(t, "size of all")
		for i := range sizes {
			if sizes[i] = 2 * uniform; uniform == 0 {
				sizes[i] = rapid.IntRange(2, 16).Draw(t, "size")
			}
		}
		topo := numasOf(sizes, rapid.IntRange(1, 8).Draw(t, "sockets"), rapid.IntRange(1, 2).Draw(t, "threads"), rapid.IntRange(1, 2).Draw(t, "L3"))
		if rapid.Bool().Draw(t, "any distances") {
			for i := range topo.NUMA {
				for j := range i {
					d := rapid.IntRange(11, 14).Draw(t, "distance")
					topo.NUMA[i].Distances[j], topo.NUMA[j].Distances[i] = d, d
				}
			}
		}
		l, err := NewLayout(topo, cpuset.Set{})
		if err != nil {
			t.Fatal(err)
		}
		n := NewNode("n", l)
		var al Allocator
		var keys []string
		for step := range 30 {
			if len(keys) > 0 && rapid.IntRange(0, 2).Draw(t, "ends") == 0 {
				i := rapid.IntRange(0, len(keys)-1).Draw(t, "which")
				n.Release(keys[i])
				keys = slices.Delete(keys, i, i+1)
				continue
			}
			c := own(rapid.IntRange(1, len(topo.CPUs)).Draw(t, "CPUs"), request.Policy{})
			if rapid.IntRange(0, 3).Draw(t, "large") > 0 {
				c.CPUs = 1 + c.CPUs/4
			}
			if rapid.IntRange(0, 4).Draw(t, "local") == 0 {
				c.Policy.Memory, c.MemoryBytes = request.LocalMemory, int64(rapid.IntRange(0, 200).Draw(t, "bytes"))
			}
			memory := int64(0)
			var free []int64
			for i, idle := range n.numaIdle {
				if idle > 0 {
					free = append(free, max(0, n.memoryFree[i]))
				}
			}
			slices.Sort(free)
			for i := range min(c.CPUs, len(free)) {
				memory += free[len(free)-1-i]
			}
			fits := n.totalIdle >= c.CPUs && memory >= c.MemoryBytes
			key := fmt.Sprint(step)
			_, a, err := al.Place([]*Node{n}, key, prepared(t, c), nil)
			if (err == nil) != fits {
				t.Fatalf("%+v with %d CPUs idle, %v bytes free: %v", c, n.totalIdle, free, err)
			}
			if err != nil {
				continue
			}
			keys = append(keys, key)
			if a.CPUs().Len() != c.CPUs {
				t.Fatalf("%d CPUs, want %d", a.CPUs().Len(), c.CPUs)
			}
			if err := n.check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
