package sharing

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// State is the use of a node's L3 domains by pods that share CPUs. It does not change with the node.
type State struct {
	domains []domain
	// sharedAt are the indices of the shared domains, and idle is the number of idle ones.
	sharedAt []int
	idle     int
}

// domain is one L3 domain.
type domain struct {
	set    cpuset.Set // CPUs that may be shared: neither exclusive nor reserved
	cpus   int        // in set
	numa   int
	load   int64 // thousandths of a CPU that pods which share its CPUs request
	shared bool
	idle   bool // no container has any of its CPUs
}

// room returns the thousandths of a CPU that pods may still request of the domain.
func (d *domain) room() int64 { return 1000*int64(d.cpus) - d.load }

// NewState computes the state of a node. requested returns what a pod requests for the containers that
// share CPUs, in thousandths of a CPU.
func NewState(n *allocate.Node, requested func(key string) int64) *State {
	l := n.Layout()
	sets, numas := l.L3Domains(), l.NUMAOfL3()
	idle := n.Idle()
	taken := n.Exclusive().Union(l.Reserved()).Union(l.Topology().Isolated)
	s := &State{domains: make([]domain, len(sets))}
	for i, set := range sets {
		open := set.Minus(taken)
		s.domains[i] = domain{set: open, cpus: open.Len(), numa: numas[i], idle: !open.IsEmpty() && set.SubsetOf(idle)}
		if s.domains[i].idle {
			s.idle++
		}
	}
	perL3 := make([]int, len(sets))
	for _, a := range n.Pods() {
		cpus := a.Shared()
		if cpus.IsEmpty() {
			continue
		}
		clear(perL3)
		l.PerL3(cpus, perL3)
		milli, all := requested(a.Key), int64(cpus.Len())
		for i, here := range perL3 {
			if here > 0 {
				s.domains[i].shared = true
				s.domains[i].load += milli * int64(here) / all
			}
		}
	}
	for i := range s.domains {
		if s.domains[i].shared {
			s.sharedAt = append(s.sharedAt, i)
		}
	}
	return s
}

// Rank says how well a node suits a pod. Lower values suit better.
type Rank struct {
	// Grows is 0 if a shared domain has room for the pod, 1 if an idle domain has to become shared, and
	// 2 if there is none.
	Grows int
	// Room is what the best shared domain leaves, or the number of idle domains: of equal nodes, the
	// fullest.
	Room int64
}

// Compare compares two ranks.
func (r Rank) Compare(o Rank) int {
	return cmp.Or(cmp.Compare(r.Grows, o.Grows), cmp.Compare(r.Room, o.Room))
}

// Rank returns the rank of the node for a pod that requests this much for this number of CPUs.
func (s *State) Rank(milli int64, cpus int) Rank {
	best := Rank{Grows: 2}
	if s.idle > 0 {
		best = Rank{1, int64(s.idle)}
	}
	for _, i := range s.sharedAt {
		d := &s.domains[i]
		if left := d.room() - milli; d.cpus >= cpus && left >= 0 && (best.Grows > 0 || left < best.Room) {
			best = Rank{0, left}
		}
	}
	return best
}

// triesMax bounds the number of domains that are tried for a pod.
const triesMax = 4

// Plan chooses the CPUs of a pod whose containers share them. Where the pod fits into no domain by what
// it requests, it is planned on the whole node.
func (s *State) Plan(al *allocate.Allocator, n *allocate.Node, key string, r *allocate.Request, milli int64) (*allocate.Allocation,
	error) {
	for _, set := range s.choices(milli, r.CPUs()) {
		if a, err := al.PlanWithin(n, key, r, set); err == nil {
			return a, nil
		}
	}
	return al.Plan(n, key, r)
}

// Shared reports whether pods share CPUs of a domain, by its index in the layout.
func (s *State) Shared(domain int) bool { return s.domains[domain].shared }

// Load returns what pods request of a domain, in thousandths of a CPU.
func (s *State) Load(domain int) int64 { return s.domains[domain].load }

// Overloaded reports whether pods request more of a domain than its shared CPUs give.
func (s *State) Overloaded(domain int) bool { return s.domains[domain].room() < 0 }

// Rooms returns the CPUs of the shared domains with room for a pod, the fullest first.
func (s *State) Rooms(milli int64, cpus int) []cpuset.Set {
	var fits []*domain
	for i := range s.domains {
		if d := &s.domains[i]; d.shared && d.cpus >= cpus && d.room() >= milli {
			fits = append(fits, d)
		}
	}
	slices.SortStableFunc(fits, func(a, b *domain) int { return cmp.Compare(a.room(), b.room()) })
	out := make([]cpuset.Set, len(fits))
	for i, d := range fits {
		out[i] = d.set
	}
	return out
}

// choices returns sets of CPUs to try for a pod, best first.
func (s *State) choices(milli int64, cpus int) []cpuset.Set {
	// 1. One shared domain.
	out := s.Rooms(milli, cpus)
	out = out[:min(len(out), triesMax)]
	near := map[int]bool{} // NUMA nodes with shared domains
	for i := range s.domains {
		near[s.domains[i].numa] = near[s.domains[i].numa] || s.domains[i].shared
	}
	// 2. Shared domains of one NUMA node, and as few idle ones as are needed beside them: the NUMA nodes
	// with shared domains first. A pod that one idle domain holds does not spread over shared ones.
	numas := map[int][]*domain{}
	for i := range s.domains {
		if d := &s.domains[i]; d.idle || d.shared && d.room() > 0 {
			numas[d.numa] = append(numas[d.numa], d)
		}
	}
	var grown []growth
	for numa, domains := range numas {
		if g, ok := grow(domains, milli, cpus); ok {
			g.numa, g.far = numa, !near[numa]
			grown = append(grown, g)
		}
	}
	slices.SortFunc(grown, growth.compare)
	for _, g := range grown[:min(len(grown), triesMax)] {
		out = append(out, g.set)
	}
	return out
}

// growth is a set of domains of one NUMA node for a pod.
type growth struct {
	set     cpuset.Set
	domains int
	idle    int // how many of them are idle
	numa    int
	far     bool // the NUMA node has no shared domain
}

func (g growth) compare(h growth) int {
	far := func(g growth) int {
		if g.far {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(g.domains, h.domains), cmp.Compare(far(g), far(h)), cmp.Compare(g.idle, h.idle), cmp.Compare(g.numa, h.numa))
}

// grow takes domains with the most room until the pod fits, of equal ones those that are shared.
func grow(domains []*domain, milli int64, cpus int) (growth, bool) {
	domains = slices.Clone(domains)
	slices.SortStableFunc(domains, func(a, b *domain) int {
		if a.idle != b.idle && a.room() == b.room() {
			if b.idle {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.room(), a.room())
	})
	var g growth
	for _, d := range domains {
		if cpus <= 0 && milli <= 0 {
			break
		}
		g.set, g.domains = g.set.Union(d.set), g.domains+1
		if d.idle {
			g.idle++
		}
		cpus -= d.cpus
		milli -= d.room()
	}
	return g, cpus <= 0 && milli <= 0
}
