package place

import (
	"fmt"
	"maps"
	"slices"
)

// AssertConsistent compares the indexes of the placer, and the sums of its snapshot, with the same
// data computed anew. It is for tests and simulations: it costs far more than placement.
func (p *Placer) AssertConsistent() error {
	if err := p.s.AssertConsistent(); err != nil {
		return err
	}
	for k, x := range p.indexes.byClass {
		x.follow()
		fresh := &index{s: x.s, class: x.class, strategy: x.strategy, scorer: x.scorer,
			static: &static{s: x.s, class: x.static.class, weights: x.static.weights}}
		fresh.static.rebuild()
		fresh.rebuild()
		switch {
		case !slices.Equal(x.static.refused, fresh.static.refused):
			return fmt.Errorf("class %q: filters of node objects are out of date", k.class)
		case !slices.Equal(x.static.score, fresh.static.score):
			return fmt.Errorf("class %q: scores of node objects are out of date", k.class)
		case !slices.Equal(x.fit, fresh.fit) || x.capacity != fresh.capacity:
			return fmt.Errorf("class %q: room on nodes is out of date: %v, not %v", k.class, x.fit, fresh.fit)
		case !slices.Equal(x.limit, fresh.limit) || !slices.Equal(x.limits, fresh.limits):
			return fmt.Errorf("class %q: what limits pods on nodes is out of date", k.class)
		case len(x.heap) != len(fresh.heap):
			return fmt.Errorf("class %q: %d nodes in the heap, not %d", k.class, len(x.heap), len(fresh.heap))
		}
		for i, e := range x.heap {
			switch {
			case x.pos[e.node] != int32(i):
				return fmt.Errorf("class %q: node %d is at %d in the heap, not at %d", k.class, e.node, i, x.pos[e.node])
			case e.key != fresh.heap[fresh.pos[e.node]].key:
				return fmt.Errorf("class %q: key of node %d is out of date", k.class, e.node)
			case i > 0 && x.before(e, x.heap[(i-1)/arity]):
				return fmt.Errorf("class %q: heap order is broken at %d", k.class, i)
			}
		}
	}
	return nil
}

// AssertConsistent checks that indices, vectors and free slots agree.
func (s *Snapshot) AssertConsistent() error {
	if len(s.byName)+len(s.free) != len(s.nodes) || len(s.ties) != len(s.nodes) ||
		len(s.amounts) != 3*s.width*len(s.nodes) {
		return fmt.Errorf("snapshot: %d names, %d free slots, %d ties and %d amounts for %d nodes of width %d",
			len(s.byName), len(s.free), len(s.ties), len(s.amounts), len(s.nodes), s.width)
	}
	sum := make(Vector, s.width)
	for i := range s.nodes {
		sum = sum.Plus(s.nodes[i].Allocatable, 1)
	}
	if !equal(sum, s.allocatable) {
		return fmt.Errorf("snapshot: %v allocatable, not %v", s.allocatable, sum)
	}
	for name, i := range s.byName {
		if s.nodes[i].Name != name {
			return fmt.Errorf("snapshot: node %q has the index of %q", name, s.nodes[i].Name)
		}
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		if len(n.Used) != s.width || &n.Used[0] != &s.amounts[(3*i+1)*s.width] {
			return fmt.Errorf("snapshot: vectors of node %q are astray", n.Name)
		}
		for _, count := range n.Ports {
			if count <= 0 {
				return fmt.Errorf("snapshot: node %q holds ports %v", n.Name, maps.Collect(maps.All(n.Ports)))
			}
		}
	}
	return nil
}
