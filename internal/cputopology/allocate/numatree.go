package allocate

import (
	"cmp"
	"slices"
)

// numaTree groups the NUMA nodes of a machine by their distances: nodes of one cluster are nearer to
// each other than to nodes of other clusters. Machines have few distance classes (within a socket,
// to the next, to the others), so a search over clusters takes the place of a search over the sets
// of NUMA nodes, whose number doubles with each node.
type numaTree struct {
	root cluster
	// exact means that all distances between two clusters are equal, as on most machines. The sum of
	// the distances within a set then follows from the number of nodes in each cluster.
	exact bool
	// nearest is a lower bound of the sum of the distances within a set, by the number of nodes.
	nearest []int
}

// cluster is one NUMA node, or several clusters.
type cluster struct {
	numa     int // the NUMA node, if there are no children
	children []cluster
	// distance is the distance between nodes of different children (the mean, if they differ), and
	// least the smallest one.
	distance, least int
}

// link is a pair of NUMA nodes and their distance.
type link struct{ a, b, distance int }

// newNUMATree clusters the NUMA nodes by single linkage: two nodes are in one cluster if a chain of
// shorter distances connects them.
func (l *Layout) newNUMATree() *numaTree {
	t := &numaTree{exact: true}
	all := make([]int, len(l.numas))
	for i := range all {
		all[i] = i
	}
	t.root = t.split(l, all, l.shortestLinks())
	t.nearest = t.root.nearest()
	return t
}

// shortestLinks returns a minimum spanning tree of the NUMA nodes (Prim's algorithm).
func (l *Layout) shortestLinks() []link {
	best := make([]link, len(l.numas)) // the shortest link from each node to the tree
	for i := range best {
		best[i] = link{0, i, l.distance(i, 0)}
	}
	out := make([]link, 0, len(l.numas))
	in := make([]bool, len(l.numas))
	in[0] = true
	for range len(l.numas) - 1 {
		next := -1
		for i := range best {
			if !in[i] && (next < 0 || best[i].distance < best[next].distance) {
				next = i
			}
		}
		out, in[next] = append(out, best[next]), true
		for i := range best {
			if d := l.distance(max(i, next), min(i, next)); !in[i] && d < best[i].distance {
				best[i] = link{next, i, d}
			}
		}
	}
	return out
}

// split makes a cluster of NUMA nodes, which the links connect.
func (t *numaTree) split(l *Layout, numas []int, links []link) cluster {
	if len(numas) == 1 {
		return cluster{numa: numas[0]}
	}
	longest := slices.MaxFunc(links, func(a, b link) int { return cmp.Compare(a.distance, b.distance) }).distance
	// Without the longest links, the rest falls into at least two parts.
	part := map[int]int{} // NUMA node -> a node that stands for its part
	for _, i := range numas {
		part[i] = i
	}
	find := func(i int) int {
		for part[i] != i {
			part[i] = part[part[i]]
			i = part[i]
		}
		return i
	}
	for _, k := range links {
		if a, b := find(k.a), find(k.b); k.distance < longest {
			part[max(a, b)] = min(a, b)
		}
	}
	members, inner := map[int][]int{}, map[int][]link{}
	for _, i := range numas {
		members[find(i)] = append(members[find(i)], i)
	}
	for _, k := range links {
		if k.distance < longest {
			inner[find(k.a)] = append(inner[find(k.a)], k)
		}
	}
	c := cluster{least: longest}
	sum, pairs, most := 0, 0, 0
	for x, i := range numas {
		for _, j := range numas[:x] {
			if find(i) == find(j) {
				continue
			}
			d := l.distance(max(i, j), min(i, j))
			sum, pairs, most, c.least = sum+d, pairs+1, max(most, d), min(c.least, d)
		}
	}
	c.distance = (sum + pairs/2) / pairs
	t.exact = t.exact && c.least == most
	for _, i := range numas {
		if find(i) == i {
			c.children = append(c.children, t.split(l, members[i], inner[i]))
		}
	}
	return c
}

// nearest returns a lower bound of the sum of the distances within a set of the cluster's nodes, by
// the number of nodes.
func (c *cluster) nearest() []int {
	if len(c.children) == 0 {
		return []int{0, 0}
	}
	sum := []int{0}
	for k := range c.children {
		child := c.children[k].nearest()
		next := make([]int, len(sum)+len(child)-1)
		for i := range next {
			next[i] = -1
		}
		for i, a := range sum {
			for j, b := range child {
				if d := a + b + i*j*c.least; next[i+j] < 0 || d < next[i+j] {
					next[i+j] = d
				}
			}
		}
		sum = next
	}
	return sum
}
