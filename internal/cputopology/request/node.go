package request

import (
	"cmp"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// NodePolicy is what the labels of a node say about the CPUs of Koordinator's pods on it. The zero
// value says nothing. It is comparable.
type NodePolicy struct {
	// Bind is FullPCPUsOnly, SpreadByPCPUs, or empty.
	Bind string
	// NUMA is BestEffort, Restricted, SingleNUMANode, or empty.
	NUMA string
	// EmptiestNUMA takes the NUMA node with the most idle CPUs instead of the one that fits best.
	EmptiestNUMA bool
}

// Values of Koordinator's labels.
const (
	fullPCPUsOnly  = "FullPCPUsOnly"
	spreadByPCPUs  = "SpreadByPCPUs"
	singleNUMANode = "SingleNUMANode"
	leastAllocated = "LeastAllocated"
)

// PolicyOf returns the policy of a node with these labels. As in Koordinator, unknown values of the
// bind policy and of the strategy have no effect.
func PolicyOf(labels map[string]string) NodePolicy {
	p := NodePolicy{
		NUMA:         labels[topologyv1alpha1.KoordinatorNUMAPolicyLabel],
		EmptiestNUMA: labels[topologyv1alpha1.KoordinatorNUMAStrategyLabel] == leastAllocated,
	}
	if p.NUMA == "None" {
		p.NUMA = ""
	}
	if bind := labels[topologyv1alpha1.KoordinatorBindPolicyLabel]; bind == fullPCPUsOnly || bind == spreadByPCPUs {
		p.Bind = bind
	}
	return p
}

// Compare gives policies an order.
func (p NodePolicy) Compare(q NodePolicy) int {
	strategy := func(p NodePolicy) int {
		if p.EmptiestNUMA {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(p.Bind, q.Bind), cmp.Compare(p.NUMA, q.NUMA), cmp.Compare(strategy(p), strategy(q)))
}

// On returns the request as it is on nodes of a policy, or why the pod cannot be on them, in the
// words of a reason "node(s) had ...". Only Koordinator's pods follow the labels.
func (p *Pod) On(n NodePolicy) (*Pod, string) {
	if p.Language != Koordinator || n == (NodePolicy{}) {
		return p, ""
	}
	if p.NUMAPolicy != "" && n.NUMA != "" && p.NUMAPolicy != n.NUMA {
		return nil, "another numa-topology-policy than the pod"
	}
	out := *p
	out.Containers = make([]Container, len(p.Containers))
	for i, c := range p.Containers {
		bind, required := c.Bind, c.Prefer&BindField == 0
		switch n.Bind {
		case fullPCPUsOnly:
			bind = FullCore
		case spreadByPCPUs:
			bind = Spread
		}
		if n.Bind != "" {
			if required && c.Bind != bind {
				return nil, "another cpu-bind-policy than the pod"
			}
			c.Bind, c.Prefer = bind, c.Prefer&^BindField
		}
		if n.NUMA == singleNUMANode {
			c.Span = SingleNUMA
		}
		out.Containers[i] = c
	}
	return &out, ""
}
