package allocate

import (
	"cmp"
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Limits of a Layout. The first three follow from the widths of cost's fields.
const (
	maxCPUs = 1<<bitsCPUs - 1
	maxL3   = 1<<bitsL3 - 1
	maxNUMA = 1<<bitsNUMA - 1
	// Limit of the number of sets of NUMA nodes of one size; above it, the sets are not listed.
	maxSubsets = 4096
)

// Layout is a machine whose CPUs are renumbered so that every domain is a range: by NUMA node,
// socket, L3 domain, core. It is immutable; nodes with equal topology and reserved CPUs share a
// Layout.
type Layout struct {
	topo     *cputopology.Topology
	hash     string
	reserved cpuset.Set
	cpus     []int   // own number -> CPU id
	own      []int32 // CPU id -> own number, -1 if none
	cores    []span
	coreOf   []int32 // own number -> core
	cellOf   []int32 // own number -> L3 domain
	cells    []cell
	l3Sets   []cpuset.Set // CPUs of each cell
	numas    []numa
	usable   []uint64 // CPUs that may be given out: neither reserved nor isolated by the kernel
	// uniform means that all cores have smt threads, one or two. The cost of a take then follows
	// from two counters.
	uniform bool
	smt     int
	// packs is the number of CPUs per L3 domain if it is the same in all and packing.go applies,
	// else 0.
	packs int
	// subsets are all sets of NUMA nodes by size, nearest first; nil if there are too many.
	// Then, tree takes their place.
	subsets [][]subset
	tree    *numaTree
}

type span struct{ lo, hi int } // own numbers lo..hi-1

func (s span) len() int { return s.hi - s.lo }

// cell is an L3 domain within one NUMA node and socket. If firmware makes these domains cross each
// other, a cell is their intersection.
type cell struct {
	span
	cores        span // indices into Layout.cores
	numa, socket int
}

// numa is a NUMA node with CPUs.
type numa struct {
	span
	cells span // indices into Layout.cells
	index int  // index in Topology.NUMA
	l3Max int  // CPUs of the largest L3 domain
}

// subset is a set of NUMA nodes and the sum of the distances between each two of them.
type subset struct {
	numas    []int
	distance int
}

// NewLayout prepares a machine for allocation. Reserved CPUs are never given out. It rejects
// machines beyond the allocator's limits: 2047 CPUs, 1023 L3 domains, 1023 NUMA nodes with CPUs.
func NewLayout(topo *cputopology.Topology, reserved cpuset.Set) (*Layout, error) {
	return newLayout(topo, reserved, maxSubsets)
}

func newLayout(topo *cputopology.Topology, reserved cpuset.Set, subsetsMax int) (*Layout, error) {
	l := &Layout{topo: topo, hash: topo.Hash(), reserved: reserved}
	cpus := slices.Clone(topo.CPUs)
	slices.SortFunc(cpus, func(a, b cputopology.CPU) int {
		return cmp.Or(a.NUMA-b.NUMA, a.Socket-b.Socket, domainOf(a)-domainOf(b), a.Core-b.Core, a.ID-b.ID)
	})
	if len(cpus) > maxCPUs {
		return nil, fmt.Errorf("allocate: %d CPUs, above the limit of %d", len(cpus), maxCPUs)
	}
	l.own = make([]int32, topo.CPUs[len(topo.CPUs)-1].ID+1)
	for i := range l.own {
		l.own[i] = -1
	}
	l.usable = make([]uint64, (len(cpus)+63)/64)
	for i, c := range cpus {
		l.cpus = append(l.cpus, c.ID)
		l.own[c.ID] = int32(i)
		if !reserved.Contains(c.ID) && !topo.Isolated.Contains(c.ID) {
			l.usable[i>>6] |= 1 << (i & 63)
		}
		newNUMA := i == 0 || cpus[i-1].NUMA != c.NUMA
		newCell := newNUMA || cpus[i-1].Socket != c.Socket || domainOf(cpus[i-1]) != domainOf(c)
		if newNUMA {
			l.numas = append(l.numas, numa{span: span{i, i}, cells: span{len(l.cells), len(l.cells)}, index: c.NUMA})
		}
		if newCell {
			l.cells = append(l.cells, cell{span{i, i}, span{len(l.cores), len(l.cores)}, len(l.numas) - 1, c.Socket})
			l.numas[len(l.numas)-1].cells.hi++
		}
		if newCell || cpus[i-1].Core != c.Core {
			l.cores = append(l.cores, span{i, i})
			l.cells[len(l.cells)-1].cores.hi++
		}
		l.cores[len(l.cores)-1].hi++
		l.cells[len(l.cells)-1].hi++
		l.numas[len(l.numas)-1].hi++
		l.coreOf = append(l.coreOf, int32(len(l.cores)-1))
		l.cellOf = append(l.cellOf, int32(len(l.cells)-1))
	}
	if len(l.cells) > maxL3 || len(l.numas) > maxNUMA {
		return nil, fmt.Errorf("allocate: %d L3 domains and %d NUMA nodes, above the limits of %d and %d", len(l.cells),
			len(l.numas), maxL3, maxNUMA)
	}
	for _, c := range l.cells {
		l.l3Sets = append(l.l3Sets, cpuset.Of(l.cpus[c.lo:c.hi]...))
		l.numas[c.numa].l3Max = max(l.numas[c.numa].l3Max, c.len())
	}
	l.smt = l.cores[0].len()
	l.uniform = l.smt <= 2 && !slices.ContainsFunc(l.cores, func(c span) bool { return c.len() != l.smt })
	if l3 := l.cells[0].len(); l3 <= packingL3Max && len(l.cells) >= packingDomains &&
		!slices.ContainsFunc(l.cells, func(c cell) bool {
			return c.len() != l3
		}) {
		l.packs = l3
	}
	if l.subsets = l.allSubsets(subsetsMax); l.subsets == nil {
		l.tree = l.newNUMATree()
	}
	return l, nil
}

// domainOf returns the number of the last-level domain of a CPU: its L3 domain, or its die if it
// has no L3.
func domainOf(c cputopology.CPU) int {
	if c.L3 >= 0 {
		return c.L3
	}
	return cputopology.MaxCPUs + c.Die
}

// Topology returns the machine from which the layout was made.
func (l *Layout) Topology() *cputopology.Topology { return l.topo }

// Reserved returns the CPUs that are never given out.
func (l *Layout) Reserved() cpuset.Set { return l.reserved }

func (l *Layout) distance(a, b int) int {
	return l.topo.NUMA[l.numas[a].index].Distances[l.numas[b].index]
}

// allSubsets lists the sets of NUMA nodes by size, nearest first. It returns nil if there are more
// than subsetsMax of one size.
func (l *Layout) allSubsets(subsetsMax int) [][]subset {
	most := 1
	for i := range len(l.numas) / 2 {
		if most = most * (len(l.numas) - i) / (i + 1); most > subsetsMax {
			return nil
		}
	}
	var out [][]subset
	for n := range len(l.numas) + 1 {
		out = append(out, l.subsetsOf(n))
	}
	return out
}

// subsetsOf lists the sets of n NUMA nodes, nearest first.
func (l *Layout) subsetsOf(n int) []subset {
	var out []subset
	var pick func(from int, chosen []int)
	pick = func(from int, chosen []int) {
		if len(chosen) == n {
			out = append(out, subset{numas: slices.Clone(chosen)})
			return
		}
		for i := from; i < len(l.numas); i++ {
			pick(i+1, append(chosen, i))
		}
	}
	pick(0, nil)
	for i, s := range out {
		for k, a := range s.numas {
			for _, b := range s.numas[:k] {
				out[i].distance += l.distance(a, b)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b subset) int { return a.distance - b.distance })
	return out
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// L3Domains returns the CPUs of each L3 domain (its part in one NUMA node and socket), in the
// layout's order.
func (l *Layout) L3Domains() []cpuset.Set { return l.l3Sets }

// NUMAOfL3 returns, for each of L3Domains, the position of its NUMA node among those with CPUs.
func (l *Layout) NUMAOfL3() []int {
	out := make([]int, len(l.cells))
	for i, c := range l.cells {
		out[i] = c.numa
	}
	return out
}

// PerL3 adds the number of CPUs of a set in each of L3Domains to counts, which has an entry for
// each domain.
func (l *Layout) PerL3(set cpuset.Set, counts []int) {
	last := 0
	for id := range set.All() {
		i := int(l.own[id])
		if c := &l.cells[last]; i < c.lo || i >= c.hi {
			last = l.cellAt(i)
		}
		counts[last]++
	}
}
