package cputopology

import (
	"cmp"
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Limits on the input of New. They bound every table built from a topology.
const (
	MaxCPUs      = 4096 // online CPUs
	MaxNUMANodes = 1024
)

// Parts describes a machine as sets of CPUs, one slice per level. New builds a Topology from it.
type Parts struct {
	// Cores partition the online CPUs; each set holds the hardware threads of one core.
	Cores []cpuset.Set
	// Sockets partition the online CPUs.
	Sockets []Socket
	// Dies are disjoint. An empty slice means one die per socket.
	Dies []cpuset.Set
	// L3 domains are disjoint sets of CPUs that share a last-level cache. CPUs without an L3 cache
	// are in none.
	L3 []L3
	// NUMA lists the NUMA nodes. Their CPU sets partition the online CPUs; a node may have no CPUs.
	NUMA []NUMANode
	// Efficient holds the CPUs of the smaller kind of core on a hybrid machine. It is empty on
	// other machines.
	Efficient cpuset.Set
	// Offline CPUs are present but switched off. Isolated CPUs are online and excluded from the
	// kernel's load balancing (isolcpus=); they belong to the administrator who isolated them.
	Offline, Isolated cpuset.Set
}

// Socket is one processor package.
type Socket struct {
	ID   int // the kernel's physical_package_id
	CPUs cpuset.Set
}

// L3 is one last-level cache and the CPUs that share it.
type L3 struct {
	CPUs  cpuset.Set
	Bytes int64 // size of the cache; 0 if unknown
}

// NUMANode is one memory node.
type NUMANode struct {
	ID          int // the kernel's node number
	CPUs        cpuset.Set
	MemoryBytes int64
	// Distances holds the firmware's distance (10 is local) to each NUMA node, in the order of
	// Parts.NUMA.
	Distances []int
}

// CPU is the position of one online CPU. All fields except ID and Efficient are indices into the
// slices of Parts.
type CPU struct {
	ID, Core, Socket, NUMA int
	Die, L3                int // -1 if the machine does not report it
	Efficient              bool
}

// Topology is a valid set of Parts with an index by CPU. It is immutable.
type Topology struct {
	// Parts is in canonical order: sockets and NUMA nodes by id, the others by lowest CPU.
	Parts
	// CPUs are the online CPUs in ascending order of id.
	CPUs   []CPU
	online cpuset.Set
}

// New validates the parts and builds the topology from them. The error names the first inconsistent
// part.
func New(p Parts) (*Topology, error) {
	t := &Topology{Parts: canonical(p)}
	var err error
	if t.online, err = disjoint("core", len(t.Cores), func(i int) cpuset.Set { return t.Cores[i] }); err != nil {
		return nil, err
	}
	switch n := t.online.Len(); {
	case n == 0:
		return nil, fmt.Errorf("topology: no online CPU")
	case n > MaxCPUs:
		return nil, fmt.Errorf("topology: %d online CPUs, above the limit of %d", n, MaxCPUs)
	case len(t.NUMA) > MaxNUMANodes:
		return nil, fmt.Errorf("topology: %d NUMA nodes, above the limit of %d", len(t.NUMA), MaxNUMANodes)
	}
	if i := slices.IndexFunc(t.Cores, cpuset.Set.IsEmpty); i >= 0 {
		return nil, fmt.Errorf("topology: core %d has no CPU", i)
	}
	if err := t.checkLevels(); err != nil {
		return nil, err
	}
	if err := t.checkNUMA(); err != nil {
		return nil, err
	}
	if bad := t.Isolated.Union(t.Efficient).Minus(t.online); !bad.IsEmpty() {
		return nil, fmt.Errorf("topology: CPUs %s are marked isolated or efficient but are not online", bad)
	}
	if bad := t.Offline.Intersect(t.online); !bad.IsEmpty() {
		return nil, fmt.Errorf("topology: CPUs %s are both online and offline", bad)
	}
	t.index()
	return t, t.checkCores()
}

func canonical(p Parts) Parts {
	if len(p.Dies) == 0 {
		for _, s := range p.Sockets {
			p.Dies = append(p.Dies, s.CPUs)
		}
	}
	byFirst := func(a, b cpuset.Set) int { return cmp.Compare(a.First(), b.First()) }
	p.Cores = slices.SortedStableFunc(slices.Values(p.Cores), byFirst)
	p.Dies = slices.SortedStableFunc(slices.Values(p.Dies), byFirst)
	p.L3 = slices.SortedStableFunc(slices.Values(p.L3), func(a, b L3) int { return byFirst(a.CPUs, b.CPUs) })
	p.Sockets = slices.SortedStableFunc(slices.Values(p.Sockets), func(a, b Socket) int { return cmp.Compare(a.ID, b.ID) })
	// NUMA nodes keep their order, because their distances refer to it. checkNUMA rejects ids that
	// are not ascending.
	p.NUMA = slices.Clone(p.NUMA)
	return p
}

// disjoint returns the union of n sets, or an error if two of them overlap.
func disjoint(what string, n int, set func(int) cpuset.Set) (cpuset.Set, error) {
	var union cpuset.Set
	for i := range n {
		if s := set(i); s.Overlaps(union) {
			return union, fmt.Errorf("topology: CPUs %s are in more than one %s", s.Intersect(union), what)
		}
		union = union.Union(set(i))
	}
	return union, nil
}

func (t *Topology) checkLevels() error {
	levels := []struct {
		name string
		n    int
		set  func(int) cpuset.Set
		all  bool // every online CPU is in one set
	}{
		{"socket", len(t.Sockets), func(i int) cpuset.Set { return t.Sockets[i].CPUs }, true},
		{"NUMA node", len(t.NUMA), func(i int) cpuset.Set { return t.NUMA[i].CPUs }, true},
		{"die", len(t.Dies), func(i int) cpuset.Set { return t.Dies[i] }, false},
		{"L3 domain", len(t.L3), func(i int) cpuset.Set { return t.L3[i].CPUs }, false},
	}
	for _, l := range levels {
		union, err := disjoint(l.name, l.n, l.set)
		if err != nil {
			return err
		}
		if extra := union.Minus(t.online); !extra.IsEmpty() {
			return fmt.Errorf("topology: CPUs %s are in a %s but not online", extra, l.name)
		}
		if missing := t.online.Minus(union); l.all && !missing.IsEmpty() {
			return fmt.Errorf("topology: online CPUs %s are in no %s", missing, l.name)
		}
		if l.name != "NUMA node" {
			for i := range l.n {
				if l.set(i).IsEmpty() {
					return fmt.Errorf("topology: %s number %d has no CPU", l.name, i)
				}
			}
		}
	}
	for i := 1; i < len(t.Sockets); i++ {
		if t.Sockets[i].ID == t.Sockets[i-1].ID {
			return fmt.Errorf("topology: socket %d is listed twice", t.Sockets[i].ID)
		}
	}
	return nil
}

func (t *Topology) checkNUMA() error {
	for i, n := range t.NUMA {
		if n.ID < 0 || i > 0 && n.ID <= t.NUMA[i-1].ID {
			return fmt.Errorf("topology: NUMA node ids are not ascending at node %d", n.ID)
		}
		if len(n.Distances) != len(t.NUMA) {
			return fmt.Errorf("topology: NUMA node %d has %d distances, want one for each of the %d nodes", n.ID,
				len(n.Distances), len(t.NUMA))
		}
		for _, d := range n.Distances {
			if d < 0 || d > 255 {
				return fmt.Errorf("topology: NUMA node %d: distance %d is outside 0-255", n.ID, d)
			}
		}
		if n.MemoryBytes < 0 {
			return fmt.Errorf("topology: NUMA node %d has negative memory", n.ID)
		}
	}
	for _, l := range t.L3 {
		if l.Bytes < 0 {
			return fmt.Errorf("topology: the L3 of CPUs %s has a negative size", l.CPUs)
		}
	}
	return nil
}

func (t *Topology) index() {
	ids := t.online.IDs()
	at := make(map[int]int, len(ids))
	t.CPUs = make([]CPU, len(ids))
	for i, id := range ids {
		at[id] = i
		t.CPUs[i] = CPU{ID: id, Die: -1, L3: -1, Efficient: t.Efficient.Contains(id)}
	}
	each := func(s cpuset.Set, set func(*CPU)) {
		for id := range s.All() {
			set(&t.CPUs[at[id]])
		}
	}
	for i, s := range t.Cores {
		each(s, func(c *CPU) { c.Core = i })
	}
	for i, s := range t.Sockets {
		each(s.CPUs, func(c *CPU) { c.Socket = i })
	}
	for i, n := range t.NUMA {
		each(n.CPUs, func(c *CPU) { c.NUMA = i })
	}
	for i, s := range t.Dies {
		each(s, func(c *CPU) { c.Die = i })
	}
	for i, l := range t.L3 {
		each(l.CPUs, func(c *CPU) { c.L3 = i })
	}
}

// checkCores rejects cores that span two larger domains.
func (t *Topology) checkCores() error {
	first := make([]*CPU, len(t.Cores))
	for i := range t.CPUs {
		c := &t.CPUs[i]
		f := first[c.Core]
		if f == nil {
			first[c.Core] = c
			continue
		}
		if f.Socket != c.Socket || f.NUMA != c.NUMA || f.Die != c.Die || f.L3 != c.L3 || f.Efficient != c.Efficient {
			return fmt.Errorf("topology: CPUs %d and %d are threads of one core but differ in socket, die, NUMA node, L3 or "+
				"kind", f.ID, c.ID)
		}
	}
	return nil
}

// Online returns the set of online CPUs.
func (t *Topology) Online() cpuset.Set { return t.online }

// ThreadsPerCore returns the largest number of threads of any core.
func (t *Topology) ThreadsPerCore() int {
	n := 0
	for _, c := range t.Cores {
		n = max(n, c.Len())
	}
	return n
}
