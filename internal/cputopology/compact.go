package cputopology

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Encode returns the topology as the spec of a NodeTopology. Equal topologies have equal specs.
func (t *Topology) Encode() topologyv1alpha1.NodeTopologySpec {
	s := topologyv1alpha1.NodeTopologySpec{
		Counts: topologyv1alpha1.Counts{CPUs: int32(len(t.CPUs)), Cores: int32(len(t.Cores)), L3: int32(len(t.L3)),
			NUMA: int32(len(t.NUMA)), Sockets: int32(len(t.Sockets))},
		Cores:     groupCores(t.Cores),
		Efficient: List(t.Efficient),
		Offline:   List(t.Offline),
		Isolated:  List(t.Isolated),
	}
	for _, p := range t.Sockets {
		s.Sockets = append(s.Sockets, topologyv1alpha1.Socket{ID: int32(p.ID), CPUs: List(p.CPUs)})
	}
	for _, n := range t.NUMA {
		node := topologyv1alpha1.NUMANode{ID: int32(n.ID), CPUs: List(n.CPUs), Memory: n.MemoryBytes, Distances: []int32{}}
		for _, d := range n.Distances {
			node.Distances = append(node.Distances, int32(d))
		}
		s.NUMA = append(s.NUMA, node)
	}
	dieIsSocket := func(d cpuset.Set) bool {
		return slices.ContainsFunc(t.Sockets, func(s Socket) bool { return d.Equal(s.CPUs) })
	}
	if len(t.Dies) != len(t.Sockets) || slices.ContainsFunc(t.Dies, func(d cpuset.Set) bool { return !dieIsSocket(d) }) {
		for _, d := range t.Dies { // New assumes one die per socket
			s.Dies = append(s.Dies, List(d))
		}
	}
	for _, l := range t.L3 {
		i := slices.IndexFunc(s.L3, func(g topologyv1alpha1.L3Group) bool { return g.Bytes == l.Bytes })
		if i < 0 {
			i = len(s.L3)
			s.L3 = append(s.L3, topologyv1alpha1.L3Group{Bytes: l.Bytes})
		}
		s.L3[i].Domains = append(s.L3[i].Domains, List(l.CPUs))
	}
	return s
}

// List returns a set of CPUs in the form used in API objects.
func List(s cpuset.Set) topologyv1alpha1.CPUList { return topologyv1alpha1.CPUList(s.String()) }

// groupCores puts each core into the first group of its number of threads in which every thread has
// a higher id than the same thread of the group's last core. Sorting the parallel lists of a group
// then keeps their pairing.
func groupCores(cores []cpuset.Set) []topologyv1alpha1.CoreGroup {
	type group struct {
		last  []int
		lists []cpuset.Builder
	}
	var groups []*group
	for _, core := range cores {
		ids := core.IDs()
		i := slices.IndexFunc(groups, func(g *group) bool {
			return len(g.last) == len(ids) && !slices.ContainsFunc(ids, func(id int) bool {
				return id <= g.last[slices.Index(ids, id)]
			})
		})
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{lists: make([]cpuset.Builder, len(ids))})
		}
		groups[i].last = ids
		for k, id := range ids {
			groups[i].lists[k].Add(id)
		}
	}
	out := make([]topologyv1alpha1.CoreGroup, len(groups))
	for i, g := range groups {
		for k := range g.lists {
			out[i] = append(out[i], List(g.lists[k].Set()))
		}
	}
	return out
}

// Decode validates the spec of a NodeTopology and builds its topology. The error names the invalid
// field.
func Decode(s topologyv1alpha1.NodeTopologySpec) (*Topology, error) {
	var d decoder
	p := Parts{
		Efficient: d.set("efficient", s.Efficient),
		Offline:   d.set("offline", s.Offline),
		Isolated:  d.set("isolated", s.Isolated),
	}
	for i, group := range s.Cores {
		p.Cores = append(p.Cores, d.cores(i, group)...)
	}
	for i, l := range s.Dies {
		p.Dies = append(p.Dies, d.set(fmt.Sprintf("dies[%d]", i), l))
	}
	for i, k := range s.Sockets {
		p.Sockets = append(p.Sockets, Socket{int(k.ID), d.set(fmt.Sprintf("sockets[%d].cpus", i), k.CPUs)})
	}
	for i, n := range s.NUMA {
		node := NUMANode{ID: int(n.ID), CPUs: d.set(fmt.Sprintf("numa[%d].cpus", i), n.CPUs), MemoryBytes: n.Memory}
		for _, distance := range n.Distances {
			node.Distances = append(node.Distances, int(distance))
		}
		p.NUMA = append(p.NUMA, node)
	}
	for i, g := range s.L3 {
		for k, l := range g.Domains {
			p.L3 = append(p.L3, L3{d.set(fmt.Sprintf("l3[%d].domains[%d]", i, k), l), g.Bytes})
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	t, err := New(p)
	if err != nil {
		return nil, err
	}
	if counts := t.Encode().Counts; s.Counts != (topologyv1alpha1.Counts{}) && s.Counts != counts {
		return nil, fmt.Errorf("topology: counts: %+v does not agree with the rest, which has %+v", s.Counts, counts)
	}
	return t, nil
}

// decoder parses CPU lists and keeps the first error.
type decoder struct{ err error }

func (d *decoder) set(field string, l topologyv1alpha1.CPUList) cpuset.Set {
	s, err := cpuset.Parse(string(l))
	if err != nil && d.err == nil {
		d.err = fmt.Errorf("topology: %s: %w", field, err)
	}
	return s
}

// cores returns the cores of a group of parallel lists.
func (d *decoder) cores(i int, group topologyv1alpha1.CoreGroup) []cpuset.Set {
	if len(group) == 0 && d.err == nil {
		d.err = fmt.Errorf("topology: cores[%d] is empty", i)
	}
	threads := make([][]int, len(group))
	for k, l := range group {
		threads[k] = d.set(fmt.Sprintf("cores[%d][%d]", i, k), l).IDs()
		if len(threads[k]) != len(threads[0]) && d.err == nil {
			d.err = fmt.Errorf("topology: cores[%d]: list %d has %d CPUs and list 0 has %d", i, k, len(threads[k]),
				len(threads[0]))
		}
	}
	if d.err != nil {
		return nil
	}
	cores := make([]cpuset.Set, len(threads[0]))
	for n := range cores {
		var core cpuset.Builder
		for k := range threads {
			core.Add(threads[k][n])
		}
		cores[n] = core.Set()
	}
	return cores
}

// Hash returns a short digest of the topology, equal for equal machines. Results that name CPUs
// contain the hash, so that CPUs chosen for another topology can be recognised.
func (t *Topology) Hash() string {
	data, err := json.Marshal(t.Encode())
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
