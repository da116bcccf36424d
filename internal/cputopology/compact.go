package cputopology

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Compact is a topology as an API object carries it: domains as CPU lists, and cores as groups of parallel lists. A
// 256-CPU machine takes 1 to 3 kB of JSON.
type Compact struct {
	// Cores: in each group, the i-th CPUs of all lists are the threads of one core. ["0-63","64-127"] is 64 cores,
	// the first of CPUs 0 and 64.
	Cores     [][]cpuset.Set `json:"cores"`
	Sockets   []CompactSet   `json:"sockets"`
	Dies      []cpuset.Set   `json:"dies,omitempty"`
	NUMA      []CompactNUMA  `json:"numa"`
	L3        []CompactL3    `json:"l3,omitempty"`
	Efficient *cpuset.Set    `json:"efficient,omitempty"`
	Offline   *cpuset.Set    `json:"offline,omitempty"`
	Isolated  *cpuset.Set    `json:"isolated,omitempty"`
}

// CompactSet is a numbered set of CPUs.
type CompactSet struct {
	ID   int        `json:"id"`
	CPUs cpuset.Set `json:"cpus"`
}

// CompactNUMA is one NUMA node.
type CompactNUMA struct {
	CompactSet `json:",inline"`
	Memory     int64 `json:"memory"` // bytes
	Distances  []int `json:"distances"`
}

// CompactL3 is all L3 domains of one size.
type CompactL3 struct {
	Bytes   int64        `json:"bytes,omitempty"`
	Domains []cpuset.Set `json:"domains"`
}

// Encode returns the compact form. Equal topologies have equal compact forms.
func (t *Topology) Encode() Compact {
	c := Compact{
		Cores:     groupCores(t.Cores),
		Efficient: optional(t.Efficient),
		Offline:   optional(t.Offline),
		Isolated:  optional(t.Isolated),
	}
	for _, s := range t.Sockets {
		c.Sockets = append(c.Sockets, CompactSet{s.ID, s.CPUs})
	}
	for _, n := range t.NUMA {
		c.NUMA = append(c.NUMA, CompactNUMA{CompactSet{n.ID, n.CPUs}, n.MemoryBytes, slices.Clone(n.Distances)})
	}
	dieIsSocket := func(d cpuset.Set) bool {
		return slices.ContainsFunc(t.Sockets, func(s Socket) bool { return d.Equal(s.CPUs) })
	}
	if len(t.Dies) != len(t.Sockets) || slices.ContainsFunc(t.Dies, func(d cpuset.Set) bool { return !dieIsSocket(d) }) {
		c.Dies = slices.Clone(t.Dies) // one die per socket is what New assumes
	}
	for _, l := range t.L3 {
		i := slices.IndexFunc(c.L3, func(g CompactL3) bool { return g.Bytes == l.Bytes })
		if i < 0 {
			i = len(c.L3)
			c.L3 = append(c.L3, CompactL3{Bytes: l.Bytes})
		}
		c.L3[i].Domains = append(c.L3[i].Domains, l.CPUs)
	}
	return c
}

func optional(s cpuset.Set) *cpuset.Set {
	if s.IsEmpty() {
		return nil
	}
	return &s
}

// groupCores puts each core into the first group of its width in which every thread is above the last core's: then the
// parallel lists, being sorted, keep their pairing.
func groupCores(cores []cpuset.Set) [][]cpuset.Set {
	type group struct {
		last  []int
		lists []cpuset.Builder
	}
	var groups []*group
	for _, core := range cores {
		ids := core.IDs()
		i := slices.IndexFunc(groups, func(g *group) bool {
			return len(g.last) == len(ids) && !slices.ContainsFunc(ids, func(id int) bool { return id <= g.last[slices.Index(ids, id)] })
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
	out := make([][]cpuset.Set, len(groups))
	for i, g := range groups {
		for k := range g.lists {
			out[i] = append(out[i], g.lists[k].Set())
		}
	}
	return out
}

// Decode checks a compact form and builds its topology.
func (c Compact) Decode() (*Topology, error) {
	p := Parts{Dies: c.Dies}
	for i, group := range c.Cores {
		if len(group) == 0 {
			return nil, fmt.Errorf("topology: cores[%d] is empty", i)
		}
		threads := make([][]int, len(group))
		for k, list := range group {
			threads[k] = list.IDs()
			if len(threads[k]) != len(threads[0]) {
				return nil, fmt.Errorf("topology: cores[%d]: list %d has %d CPUs and list 0 has %d", i, k, len(threads[k]), len(threads[0]))
			}
		}
		for n := range threads[0] {
			var core cpuset.Builder
			for k := range threads {
				core.Add(threads[k][n])
			}
			p.Cores = append(p.Cores, core.Set())
		}
	}
	for _, s := range c.Sockets {
		p.Sockets = append(p.Sockets, Socket{s.ID, s.CPUs})
	}
	for _, n := range c.NUMA {
		p.NUMA = append(p.NUMA, NUMANode{n.ID, n.CPUs, n.Memory, n.Distances})
	}
	for _, g := range c.L3 {
		for _, d := range g.Domains {
			p.L3 = append(p.L3, L3{d, g.Bytes})
		}
	}
	for _, f := range []struct {
		from *cpuset.Set
		to   *cpuset.Set
	}{{c.Efficient, &p.Efficient}, {c.Offline, &p.Offline}, {c.Isolated, &p.Isolated}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	return New(p)
}

// Hash is a short digest of the topology, equal for equal machines. A result that names CPUs carries it, so that CPUs
// chosen for another shape of the machine are recognised.
func (t *Topology) Hash() string {
	data, err := json.Marshal(t.Encode())
	if err != nil {
		panic(err) // sets and integers always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
