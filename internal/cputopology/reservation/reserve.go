package reservation

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Reserve says which CPUs of a node are kept for the shared pool.
type Reserve struct {
	// Named are CPUs by number.
	Named cpuset.Set
	// Count is the least number of CPUs.
	Count int
	// Percent is the least share of the machine's CPUs.
	Percent int
}

// Of returns the reserved CPUs of a machine. Those that are not named are taken core by core from the
// first socket, as a kubelet does.
func (r Reserve) Of(topo *cputopology.Topology) cpuset.Set {
	online := topo.Online().Minus(topo.Isolated)
	out := r.Named.Intersect(topo.Online())
	want := min(max(r.Count, (topo.Online().Len()*r.Percent+99)/100), online.Len())
	if out.Len() >= want {
		return out
	}
	cpus := slices.Clone(topo.CPUs)
	slices.SortStableFunc(cpus, func(a, b cputopology.CPU) int {
		return cmp.Or(cmp.Compare(a.Socket, b.Socket), cmp.Compare(a.NUMA, b.NUMA), cmp.Compare(a.Core, b.Core), cmp.Compare(a.ID, b.ID))
	})
	var more cpuset.Builder
	left := want - out.Len()
	for _, c := range cpus {
		if left > 0 && online.Contains(c.ID) && !out.Contains(c.ID) {
			more.Add(c.ID)
			left--
		}
	}
	return out.Union(more.Set())
}

// Equal reports whether r and s reserve the same CPUs of every machine.
func (r Reserve) Equal(s Reserve) bool {
	return r.Named.Equal(s.Named) && r.Count == s.Count && r.Percent == s.Percent
}

// And returns what reserves as much as each of the two.
func (r Reserve) And(s Reserve) Reserve {
	return Reserve{Named: r.Named.Union(s.Named), Count: max(r.Count, s.Count), Percent: max(r.Percent, s.Percent)}
}
