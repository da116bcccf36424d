package simulate

import (
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
)

// Existing is an existing cluster: its nodes with the pods that hold CPUs, and the sizes of all
// pods in order of arrival.
type Existing struct {
	Name  string
	Nodes []*allocate.Node
	Sizes []int // CPUs
}

// AsItIs judges the present placement of a cluster. A pod's split is avoidable if some node has
// room for the pod in fewer domains now, including the pod's own CPUs.
func AsItIs(c Existing) (Result, error) {
	s, err := newExisting(c, 0)
	if err != nil {
		return Result{}, err
	}
	for i, n := range c.Nodes {
		s.nodes[i] = n.Clone()
		s.recount(i)
	}
	for i, n := range s.nodes {
		for _, a := range n.Pods() {
			size := a.CPUs().Len()
			s.result.Placed++
			s.idle -= size
			s.judge(i, a.Key, size)
		}
	}
	s.result.Policy = "as it is"
	s.result.Unplaced = max(0, len(c.Sizes)-s.result.Placed)
	s.seeFree()
	return s.finish(), nil
}

// Anew places all pods of a cluster on its empty nodes, in their order of arrival or, for a seed
// above 1, in random order. Only their numbers of CPUs count: every pod gets CPUs of its own.
func Anew(c Existing, policy Policy, seed uint64, now func() time.Time) (Result, error) {
	s, err := newExisting(c, seed)
	if err != nil {
		return Result{}, err
	}
	s.policy, s.cfg.Now = policy, now
	s.result.Policy = policy.Name()
	sizes := slices.Clone(c.Sizes)
	if seed > 1 {
		s.rng.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	}
	for _, size := range sizes {
		s.arrive(size)
	}
	s.seeFree()
	return s.finish(), nil
}

// Groups returns the machines of the cluster, without what runs on them.
func (c Existing) Groups() []Group {
	var out []Group
	for _, n := range c.Nodes {
		topo := n.Layout().Topology()
		if k := len(out) - 1; k >= 0 && out[k].Topology == topo {
			out[k].Nodes++
			continue
		}
		out = append(out, Group{topo, 1})
	}
	return out
}

// On returns a cluster of other machines with the same pods to be placed.
func (c Existing) On(name string, machines []Group) (Existing, error) {
	nodes, err := emptyNodes(machines)
	return Existing{Name: name, Nodes: nodes, Sizes: c.Sizes}, err
}

func newExisting(c Existing, seed uint64) (*simulation, error) {
	var nodes []*allocate.Node
	for _, n := range c.Nodes {
		nodes = append(nodes, allocate.NewNode(n.Name, n.Layout()))
	}
	s, err := newSimulation(nodes, seed)
	if err == nil {
		s.result = Result{Machine: c.Name, Nodes: len(nodes), Mix: "its pods", Seed: seed}
	}
	return s, err
}
