package evict

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// room is the state of the nodes while victims are chosen. Pods are lifted from their nodes and put
// back; the numbers of pods that fit, by class, follow. trial is a snapshot for package place, which
// follows when place is called.
type room struct {
	width int
	pods  []pod // of all gangs
	nodes []node
	// allocatable and used hold width amounts per node.
	allocatable, used []int64

	trial  *place.Snapshot
	placer *place.Placer
	nodeOf []int32 // by index in trial
	// vacant has the same nodes without pods. Its placer tells which nodes a class may go to.
	vacant *place.Placer
	follow func(*Pod, bool)
	// placements counts the calls of place.
	placements int

	stale   []int32 // nodes that trial does not show as they are
	classes []fits
	least   place.Vector // what the claimant takes in any case
	// With several classes, free is the sum of what is free on nodes that take a pod of one of
	// them, and part is what each node contributes to it.
	free     place.Vector
	part     []int64
	eligible map[string][]bool // by class key: nodes that pass the filters on the node's object
}

// node is a node of the state.
type node struct {
	place.Node
	index   int32 // in trial
	pods    []int32
	nonZero [2]int64
	ports   place.PortSet // nil if no pod uses a host port
	stale   bool
}

// pod is a pod on a node of the state.
type pod struct {
	*Pod
	gang, node, task int32
	lifted           bool
	seen             bool // trial shows the pod as lifted
	age, work        int64
	level            int // index of its priority in victims.levels, for the claim
}

// fits counts the pods of a class that fit.
type fits struct {
	class    *place.Class
	needs    []need
	eligible []bool
	fit      []int32 // by node
	total    int64
	wanted   int64 // how many of the class the claimant needs at least
}

// need is one dimension of a request.
type need struct {
	dim    int
	amount int64
}

// eligibleMax bounds the number of classes whose nodes are kept.
const eligibleMax = 256

func newRoom(s *State) *room {
	dims := s.Nodes.Dims()
	r := &room{width: dims.Len(), follow: s.Follow, eligible: map[string][]bool{}}
	for _, n := range s.Nodes.All() {
		r.nodes = append(r.nodes, node{Node: *n})
	}
	slices.SortFunc(r.nodes, func(a, b node) int { return cmp.Compare(a.Name, b.Name) })
	r.allocatable, r.used = make([]int64, r.width*len(r.nodes)), make([]int64, r.width*len(r.nodes))
	r.trial = place.NewSnapshot(dims)
	empty := place.NewSnapshot(dims)
	r.nodeOf = make([]int32, len(r.nodes))
	for i := range r.nodes {
		n := &r.nodes[i]
		copy(r.allocatable[i*r.width:], n.Allocatable)
		n.Allocatable = r.allocatable[i*r.width:][:r.width]
		copy(r.used[i*r.width:], n.Used)
		n.nonZero = [2]int64{n.UsedNonZero.At(place.CPU), n.UsedNonZero.At(place.Memory)}
		n.ports = maps.Clone(n.Ports)
		n.index = r.trial.Set(n.Node)
		r.nodeOf[n.index] = int32(i)
		bare := n.Node
		bare.Used, bare.UsedNonZero, bare.Ports = nil, nil, nil
		empty.Set(bare)
	}
	r.placer = place.NewPlacer(r.trial, s.Place)
	r.vacant = place.NewPlacer(empty, place.Options{})
	return r
}

// lift takes a pod from its node.
func (r *room) lift(p *pod) {
	if !p.lifted {
		p.lifted = true
		r.change(p, -1)
	}
}

// putBack undoes lift.
func (r *room) putBack(p *pod) {
	if p.lifted {
		p.lifted = false
		r.change(p, 1)
	}
}

func (r *room) change(p *pod, times int64) {
	n := &r.nodes[p.node]
	used := r.used[int(p.node)*r.width:][:r.width]
	for dim, amount := range p.Request {
		used[dim] += times * amount
	}
	n.nonZero[0] += times * p.NonZero.At(place.CPU)
	n.nonZero[1] += times * p.NonZero.At(place.Memory)
	for _, port := range p.Ports {
		if n.ports == nil {
			n.ports = place.PortSet{}
		}
		if n.ports[port] += int(times); n.ports[port] == 0 {
			delete(n.ports, port)
		}
	}
	r.touch(p.node)
}

// touch brings what depends on a node up to date.
func (r *room) touch(i int32) {
	if n := &r.nodes[i]; !n.stale {
		n.stale = true
		r.stale = append(r.stale, i)
	}
	for k := range r.classes {
		f := &r.classes[k]
		if f.eligible[i] {
			fit := r.fits(f, i)
			f.total += int64(fit - f.fit[i])
			f.fit[i] = fit
		}
	}
	if r.free != nil {
		r.contribute(i)
	}
}

// contribute updates what a node contributes to free.
func (r *room) contribute(i int32) {
	serves := slices.ContainsFunc(r.classes, func(f fits) bool { return f.fit[i] > 0 })
	base := int(i) * r.width
	for dim := range r.width {
		free := int64(0)
		if serves {
			free = max(0, r.allocatable[base+dim]-r.used[base+dim])
		}
		r.free[dim] += free - r.part[base+dim]
		r.part[base+dim] = free
	}
}

// lacking returns the resource of which less is free than the claimant takes in any case, and how
// much less.
func (r *room) lacking() (dim int, amount int64) {
	for dim, free := range r.free {
		if lack := r.least.At(dim) - free; lack > 0 {
			return dim, lack
		}
	}
	return 0, 0
}

// fits returns how many more pods of a class a node takes.
func (r *room) fits(f *fits, i int32) int32 {
	allocatable, used := r.allocatable[int(i)*r.width:][:r.width], r.used[int(i)*r.width:][:r.width]
	fit := int64(math.MaxInt32)
	for _, need := range f.needs {
		free := allocatable[need.dim] - used[need.dim]
		if free < need.amount {
			return 0
		}
		fit = min(fit, free/need.amount)
	}
	if len(f.class.Ports) > 0 {
		if slices.ContainsFunc(f.class.Ports, r.nodes[i].ports.Conflicts) {
			return 0
		}
		fit = 1
	}
	return int32(fit)
}

// count starts counting the pods of a claim's classes that fit.
func (r *room) count(classes []fits, least place.Vector) {
	r.classes, r.least, r.free = classes, least, nil
	for k := range classes {
		f := &classes[k]
		f.needs, f.total = f.needs[:0], 0
		impossible := false
		for dim, amount := range f.class.Request {
			if amount == 0 {
				continue
			}
			impossible = impossible || dim >= r.width
			f.needs = append(f.needs, need{dim, amount})
		}
		f.fit = make([]int32, len(r.nodes))
		f.eligible = r.eligibleFor(f.class)
		if impossible { // no node has a resource that the class needs
			f.eligible = make([]bool, len(r.nodes))
		}
		for i := range r.nodes {
			if f.eligible[i] {
				f.fit[i] = r.fits(f, int32(i))
				f.total += int64(f.fit[i])
			}
		}
	}
	if len(classes) > 1 {
		r.free, r.part = make(place.Vector, r.width), make([]int64, len(r.used))
		for i := range r.nodes {
			r.contribute(int32(i))
		}
	}
}

// eligibleFor returns the nodes that would take a pod of the class if they were empty.
func (r *room) eligibleFor(c *place.Class) []bool {
	if e := r.eligible[c.Key()]; e != nil {
		return e
	}
	if len(r.eligible) >= eligibleMax {
		clear(r.eligible)
	}
	plain := *c
	plain.Pins = nil
	at := map[string]int32{}
	for i := range r.nodes {
		at[r.nodes[i].Name] = int32(i)
	}
	e := make([]bool, len(r.nodes))
	for n := range r.vacant.Candidates(&plain) {
		e[at[n.Name]] = true
	}
	r.eligible[c.Key()] = e
	return e
}

// enough reports whether every class has as many places as the claimant needs at least. If the
// claimant has one class, then its minimum fits; otherwise it may.
func (r *room) enough() bool {
	for k := range r.classes {
		if r.classes[k].total < r.classes[k].wanted {
			return false
		}
	}
	_, lack := r.lacking()
	return lack == 0
}

// place asks package place for the claimant's nodes, and leaves the nodes as they were.
func (r *room) place(g place.Gang) place.Decision {
	r.sync()
	r.placements++
	d := r.placer.Place(g)
	if d.Shortage == nil {
		r.placer.Undo(g, d)
	}
	return d
}

// sync makes trial show the nodes as they are.
func (r *room) sync() {
	for _, i := range r.stale {
		n := &r.nodes[i]
		n.stale = false
		state := n.Node
		state.Used = r.used[int(i)*r.width:][:r.width]
		state.UsedNonZero = n.nonZero[:]
		state.Ports = n.ports
		r.trial.Set(state)
		for _, id := range n.pods {
			if p := &r.pods[id]; p.lifted != p.seen {
				p.seen = p.lifted
				if r.follow != nil {
					r.follow(p.Pod, p.lifted)
				}
			}
		}
	}
	r.stale = r.stale[:0]
}

// take puts pods of a class on a node for good.
func (r *room) take(c *place.Class, i int32) {
	n := &r.nodes[i]
	used := r.used[int(i)*r.width:][:r.width]
	for dim, amount := range c.Request {
		if amount != 0 {
			used[dim] += amount
		}
	}
	n.nonZero[0] += c.NonZero.At(place.CPU)
	n.nonZero[1] += c.NonZero.At(place.Memory)
	for _, port := range c.Ports {
		if n.ports == nil {
			n.ports = place.PortSet{}
		}
		n.ports[port]++
	}
	r.touch(i)
}
