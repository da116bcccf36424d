package allocate

import "lockstep.dev/lockstep/internal/cputopology/cpuset"

// PlanWithin is Plan for a node of which only some CPUs may be chosen. The cost counts the other CPUs as
// in use.
func (al *Allocator) PlanWithin(n *Node, key string, r *Request, cpus cpuset.Set) (*Allocation, error) {
	some := n.Clone()
	some.confine(cpus)
	return al.Plan(some, key, r)
}

// confine keeps all CPUs but those given from being chosen.
func (n *Node) confine(cpus cpuset.Set) {
	n.version++
	for i, id := range n.layout.cpus {
		if !cpus.Contains(id) {
			put(n.exclusive, i, true)
		}
	}
	for c := range n.layout.cells {
		n.recount(c)
	}
}

// Version is the number of changes of the node.
func (n *Node) Version() uint64 { return n.version }

// Shared returns the CPUs of the containers that share them.
func (a *Allocation) Shared() cpuset.Set {
	var s cpuset.Set
	for _, c := range a.Containers {
		if c.Share != 1 && !c.shadow {
			s = s.Union(c.CPUs)
		}
	}
	return s
}

// Widened returns the present CPUs of the burst containers of an allocation.
func (n *Node) Widened(a *Allocation) map[string]cpuset.Set {
	var wide map[string]cpuset.Set
	for _, c := range a.Containers {
		if c.Burst {
			if wide == nil {
				wide = map[string]cpuset.Set{}
			}
			wide[c.Name] = n.Effective(c)
		}
	}
	return wide
}
