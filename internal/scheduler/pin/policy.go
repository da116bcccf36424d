package pin

import (
	"cmp"
	"maps"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// variant is a class's request on nodes of one policy.
type variant struct {
	request *allocate.Request
	// refused is the reason why the pods cannot be on such nodes, or empty.
	refused string
}

// on returns the request on nodes of a policy.
func (p *Pins) on(n request.NodePolicy) variant {
	if n == (request.NodePolicy{}) || p.asked.Language != request.Koordinator {
		return variant{request: p.request}
	}
	if v, known := p.variants[n]; known {
		return v
	}
	var v variant
	asked, refused := p.asked.On(n)
	if v.refused = refused; refused == "" {
		var err error
		if v.request, err = allocate.NewRequest(asked); err != nil {
			v.refused = "labels that the pod's request contradicts: " + err.Error()
		}
	}
	p.variants[n] = v
	return v
}

// setPolicy records the policy of a node.
func (p *Pinner) setPolicy(m *machine, policy request.NodePolicy) {
	if m.policy != policy {
		p.uncount(m.policy)
		m.policy = policy
		p.policies[policy]++
	}
}

// uncount removes a node from the number of nodes with its policy.
func (p *Pinner) uncount(policy request.NodePolicy) {
	if p.policies[policy]--; p.policies[policy] == 0 {
		delete(p.policies, policy)
	}
}

// place chooses a node and allocates CPUs there; the allocation is nil if no node has any. Nodes with
// different policies have different requests: the best node of each policy is compared with the best
// of the others.
func (p *Pinner) place(key string, pins *Pins, allowed func(slot int) bool) (int, *allocate.Allocation) {
	if pins.shares {
		if slot, given := p.placeShared(key, pins, allowed); given != nil {
			return slot, given
		}
	}
	if pins.asked.Language != request.Koordinator || len(p.policies) == 1 && p.policies[request.NodePolicy{}] > 0 {
		slot, given, err := p.allocator.Place(p.nodes, key, pins.request, allowed)
		if err != nil {
			return -1, nil
		}
		return slot, given
	}
	best, slot := (*allocate.Allocation)(nil), -1
	for _, policy := range slices.SortedFunc(maps.Keys(p.policies), request.NodePolicy.Compare) {
		v := pins.on(policy)
		if v.refused != "" {
			continue
		}
		i, err := p.allocator.Choose(p.nodes, v.request, func(slot int) bool {
			return p.machines[slot].policy == policy && allowed(slot)
		})
		if err != nil {
			continue
		}
		given, err := p.plan(p.nodes[i], key, v.request, policy)
		if err == nil && (best == nil || compareCosts(given.Cost, best.Cost) < 0) {
			best, slot = given, i
		}
	}
	if best == nil || p.nodes[slot].Restore(best) != nil {
		return -1, nil
	}
	return slot, best
}

// plan chooses CPUs on a node by its policy.
func (p *Pinner) plan(n *allocate.Node, key string, r *allocate.Request, policy request.NodePolicy) (*allocate.Allocation,
	error) {
	if policy.EmptiestNUMA {
		if a := p.onEmptiestNUMA(n, key, r); a != nil {
			return a, nil
		}
	}
	return p.allocator.Plan(n, key, r)
}

// onEmptiestNUMA chooses CPUs within the NUMA node with the most idle CPUs, or returns nil if the
// request does not fit there.
func (p *Pinner) onEmptiestNUMA(n *allocate.Node, key string, r *allocate.Request) *allocate.Allocation {
	idle := n.Idle()
	var most cpuset.Set
	for _, numa := range n.Layout().Topology().NUMA {
		if here := numa.CPUs.Intersect(idle); here.Len() > most.Len() {
			most = here
		}
	}
	if most.Len() < r.CPUs() {
		return nil
	}
	a, err := p.allocator.PlanWithin(n, key, r, most)
	if err != nil {
		return nil
	}
	return a
}

// compareCosts compares two choices on different nodes by the first terms of their cost.
func compareCosts(a, b allocate.Cost) int {
	return cmp.Or(cmp.Compare(a.Violations, b.Violations), cmp.Compare(a.NUMANodes, b.NUMANodes),
		cmp.Compare(a.Distance, b.Distance), cmp.Compare(a.Refs, b.Refs), cmp.Compare(a.L3, b.L3), cmp.Compare(a.WholeL3, b.WholeL3))
}
