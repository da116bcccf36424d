package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// diagnosis says why the nodes take no more pods of a class. It is computed once per state of the
// snapshot.
type diagnosis struct {
	refused map[string]int
	free    Vector // sum over the nodes that pass all filters except resources
	largest Vector // largest allocatable amount of one of these nodes, per dimension
	limits  []int  // number of these nodes, by the dimension that limits them
	limited bool   // there are such nodes
}

// diagnose says why. The index must be up to date.
func (x *index) diagnose() *diagnosis {
	if x.diagnosis != nil && x.diagnosedAt == x.cursor {
		return x.diagnosis
	}
	d := &diagnosis{refused: map[string]int{}}
	for r, nodes := range x.static.count().refused {
		if r := refusal(r); r != passes && r != vacant && nodes > 0 {
			d.refused[refusedText[r]] = nodes
		}
	}
	if len(x.class.Ports) > 0 {
		x.countFree(d)
	} else {
		d.free, d.largest, d.limits = x.static.counted.free, x.static.counted.largest, x.limits
	}
	for limit, nodes := range d.limits {
		if nodes > 0 {
			d.limited = true
			d.refused[x.insufficient(limit)] += nodes
		}
	}
	x.diagnosis, x.diagnosedAt = d, x.cursor
	return d
}

// countFree counts the nodes that have the host ports of the class. With host ports, a node takes at most
// one pod.
func (x *index) countFree(d *diagnosis) {
	d.free, d.largest, d.limits = make(Vector, x.s.width), make(Vector, x.s.width), make([]int, x.s.width)
	for i := range x.s.nodes {
		n := &x.s.nodes[i]
		if x.static.refused[i] != passes {
			continue
		}
		room, limit := x.room(int32(i))
		if slices.ContainsFunc(x.class.Ports, n.Ports.Conflicts) || room > 1 {
			d.refused[RefusedPorts]++
			continue
		}
		for _, need := range x.class.needs {
			d.free[need.dim] += max(0, n.Allocatable[need.dim]-n.Used[need.dim])
			d.largest[need.dim] = max(d.largest[need.dim], n.Allocatable[need.dim])
		}
		d.limits[limit]++
	}
}

// counted is what the classes of a static have in common for their diagnoses, in one state of the snapshot.
type counted struct {
	cursor  int64
	refused [len(refusedText)]int // nodes
	// free and largest are as in a diagnosis, for all resources.
	free, largest Vector
}

// count examines every node, unless it has in this state of the snapshot. The static must be up to date.
func (st *static) count() *counted {
	c := &st.counted
	if c.free != nil && c.cursor == st.s.changeEnd() && len(c.free) == st.s.width {
		return c
	}
	w := st.s.width
	*c = counted{cursor: st.s.changeEnd(), free: make(Vector, w), largest: make(Vector, w)}
	for i, r := range st.refused {
		if c.refused[r]++; r != passes {
			continue
		}
		amounts := st.s.amounts[i*3*w:][:2*w]
		for dim, allocatable := range amounts[:w] {
			c.free[dim] += max(0, allocatable-amounts[w+dim])
			c.largest[dim] = max(c.largest[dim], allocatable)
		}
	}
	return c
}

func (x *index) insufficient(dim int) string {
	if dim == Pods {
		return RefusedPods
	}
	return RefusedInsufficient + string(x.s.dims.Name(dim))
}

// shortage explains why only fit of the wanted pods fit. more is the number of pods for which room
// is missing in the snapshot as it stands: the pods that fit may already be placed in it or not.
func (p *Placer) shortage(x *index, d *demand, wanted, fit, more int) *Shortage {
	if p.target.active {
		return &Shortage{Demand: d.number, Wanted: wanted, Fit: fit} // notNear explains it
	}
	diag := x.diagnose()
	s := &Shortage{Demand: d.number, Wanted: wanted, Fit: fit, Rejected: diag.refused}
	if d.refused != nil {
		// Nodes with room were refused by the rare filter or the pinner, so no resource is short.
		s.Rejected = maps.Clone(diag.refused)
		for _, e := range x.heap {
			_, limit := x.room(e.node)
			if why := x.insufficient(limit); s.Rejected[why] > 1 {
				s.Rejected[why]--
			} else {
				delete(s.Rejected, why)
			}
		}
		maps.Copy(s.Rejected, d.refused)
		if d.cpus != nil {
			s.CPUs, s.Never = d.cpus.Want, d.cpus.Never
		}
		return s
	}
	if !diag.limited {
		return s
	}
	// A pod that is larger than every node needs a larger node; it does not wait for other pods to
	// end.
	for _, need := range x.class.needs {
		if lacks := need.amount - diag.largest[need.dim]; lacks > 0 {
			s.Resource, s.Missing, s.TooLarge = x.s.dims.Name(need.dim), lacks, true
			return s
		}
	}
	// A resource is short if less of it is free than the pods still wanted ask for. The resource
	// with the largest relative shortage is reported.
	worst := 0.0
	for _, need := range x.class.needs {
		ask := int64(more) * need.amount
		if part := float64(ask-diag.free[need.dim]) / float64(ask); part > worst {
			worst = part
			s.Resource, s.Missing = x.s.dims.Name(need.dim), ask-diag.free[need.dim]
		}
	}
	if worst > 0 {
		return s
	}
	// There is enough in all, but not on any single node. The dimension that limits most nodes is
	// reported.
	nodes := 0
	for _, need := range x.class.needs {
		if diag.limits[need.dim] > nodes {
			nodes = diag.limits[need.dim]
			s.Resource, s.Missing, s.Fragmented = x.s.dims.Name(need.dim), int64(wanted-fit)*need.amount, true
		}
	}
	return s
}

// Stable describes the shortage without figures that change while the cause stays the same.
func (s *Shortage) Stable() string {
	switch {
	case s.Domain != nil:
		return s.Domain.stable(s.Wanted)
	case s.Parts != nil:
		return s.Parts.stable()
	case s.Never:
		return fmt.Sprintf("no node could ever give a pod %s", s.CPUs)
	case s.CPUs != "":
		return fmt.Sprintf("%d pods need nodes with %s", s.Wanted, s.CPUs)
	case s.Resource == "":
		return s.refusal(func(why string, _ int) string { return why })
	case s.TooLarge:
		return fmt.Sprintf("a pod asks for more %s than any node has", s.Resource)
	case s.Fragmented:
		return fmt.Sprintf("no node has enough %s for all of %s", s.Resource, pods(s.Wanted))
	}
	return fmt.Sprintf("not enough %s for %s", s.Resource, pods(s.Wanted))
}

// Counted describes the shortage like Stable, with the number of nodes for each cause if no node, or
// too few, accept the pods, and with the best domain if none has room for them.
func (s *Shortage) Counted() string {
	switch {
	case s.Domain != nil:
		return s.Domain.counted(s.Fit, s.Wanted)
	case s.Parts != nil:
		return s.Parts.stable() + ": " + s.Parts.detail()
	}
	if s.Never || s.CPUs != "" || s.Resource != "" {
		return s.Stable()
	}
	return s.refusal(func(why string, n int) string {
		if strings.HasPrefix(why, "node(s) ") {
			return fmt.Sprintf("%d %s", n, why)
		}
		return why // about the pods, or their volumes: it holds for all nodes
	})
}

// refusal lists why nodes refuse the pods, by their objects or by the rare filter. Nodes that are full
// are left out: they come and go.
func (s *Shortage) refusal(describe func(why string, nodes int) string) string {
	var causes []string
	for _, why := range slices.Sorted(maps.Keys(s.Rejected)) {
		if why != RefusedPods && !strings.HasPrefix(why, RefusedInsufficient) {
			causes = append(causes, describe(why, s.Rejected[why]))
		}
	}
	if len(causes) == 0 {
		causes = []string{"there are no nodes for pods"}
	}
	few := "too few nodes accept "
	if s.Wanted == 1 {
		few = "no node accepts "
	}
	return few + pods(s.Wanted) + ": " + strings.Join(causes, ", ")
}

func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// Detail describes the shortage in figures.
func (s *Shortage) Detail() string {
	switch {
	case s.Domain != nil:
		return s.Domain.detail(s.Fit, s.Wanted)
	case s.Parts != nil:
		return s.Parts.detail()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d pods fit", s.Fit, s.Wanted)
	if s.Resource != "" {
		q := quantity(s.Resource, s.Missing)
		fmt.Fprintf(&b, ", %s of %s missing", q.String(), s.Resource)
	}
	sep := "; nodes: "
	for _, why := range slices.Sorted(maps.Keys(s.Rejected)) {
		fmt.Fprintf(&b, "%s%d %s", sep, s.Rejected[why], why)
		sep = ", "
	}
	return b.String()
}
