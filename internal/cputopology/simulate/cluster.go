package simulate

import (
	"fmt"
	"math/rand/v2"
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
	}
	for i, n := range s.nodes {
		s.nodeFree[i] = 0
		s.recount(i)
		for _, a := range n.Pods() {
			size := a.CPUs().Len()
			s.result.Placed++
			s.count(i, size, +1)
			s.judge(i, a.Key, size)
		}
	}
	s.freeL3 = 0
	for _, n := range s.nodes {
		s.freeL3 += n.IdleL3()
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

func newExisting(c Existing, seed uint64) (*simulation, error) {
	if len(c.Nodes) == 0 {
		return nil, fmt.Errorf("simulate: no nodes")
	}
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 0)), fewest: map[fewestKey][]fewestL3{}}
	seen := map[*allocate.Layout]bool{}
	for _, n := range c.Nodes {
		empty := allocate.NewNode(n.Name, n.Layout())
		s.addNode(empty)
		if l := n.Layout(); !seen[l] {
			seen[l] = true
			s.empty = append(s.empty, allocate.NewNode("", l))
		}
		for _, d := range n.Layout().L3Domains() {
			if s.l3Size == 0 {
				s.l3Size = d.Len()
			}
			// Without a common size the possible number of idle domains is unknown.
			if d.Len() != s.l3Size {
				s.l3Size = -1
			}
		}
	}
	s.measure()
	s.idle = s.cpus
	s.result = Result{Machine: c.Name, Nodes: len(c.Nodes), Mix: "its pods", Seed: seed}
	return s, nil
}
