package evict

import (
	"maps"
	"math"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// occupancy is the state of the nodes while victims are chosen. Pods are lifted from their nodes and
// put back; the numbers of pods that fit, by class, follow. trial is a snapshot for package place,
// which follows when place is called.
type occupancy struct {
	width int
	pods  []pod // of all gangs
	list  []node
	// allocatable and used hold width amounts per node.
	allocatable, used []int64

	trial  *place.Snapshot
	placer *place.Placer
	nodeOf []int32 // by index in trial
	// placements counts the calls of place.
	placements int

	stale   []int32      // nodes that trial does not show as they are
	classes []*fits      // of the claim
	least   place.Vector // what the claimant takes in any case
	// With several classes, free is the sum of what is free on nodes that take a pod of one of
	// them, and part is what each node contributes to it.
	free   place.Vector
	part   []int64
	within []bool // by node: the claimant may be on it; nil means on all nodes

	// Kept for later claims: the nodes that pass the filters on the node's object, by
	// place.Class.StaticKey, and what fits when nobody has left, by place.Class.Key.
	eligible map[string][]bool
	counted  map[string]*fits
	spare    [][]int32 // memory for tally
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
	request          place.Vector
	gang, node, task int32
	lifted           bool
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

// keptBytes bounds the memory of each of the maps that are kept for later claims.
const keptBytes = 16 << 20

// full reports whether a map that has an entry of some bytes for each node has enough entries.
func (o *occupancy) full(entries, bytes int) bool { return entries*bytes*len(o.list) >= keptBytes }

func newOccupancy(s *State) *occupancy {
	dims := s.Nodes.Dims()
	o := &occupancy{width: dims.Len(), eligible: map[string][]bool{}, counted: map[string]*fits{}}
	byName := make([]*place.Node, 0, s.Nodes.Len())
	for _, n := range s.Nodes.All() {
		byName = append(byName, n)
	}
	slices.SortFunc(byName, func(a, b *place.Node) int { return strings.Compare(a.Name, b.Name) })
	o.list = make([]node, len(byName))
	for i, n := range byName {
		o.list[i].Node = *n
	}
	o.allocatable, o.used = make([]int64, o.width*len(o.list)), make([]int64, o.width*len(o.list))
	o.trial = place.NewSnapshot(dims)
	o.nodeOf = make([]int32, len(o.list))
	for i := range o.list {
		n := &o.list[i]
		copy(o.allocatable[i*o.width:], n.Allocatable)
		n.Allocatable = o.allocatable[i*o.width:][:o.width]
		copy(o.used[i*o.width:], n.Used)
		n.nonZero = [2]int64{n.UsedNonZero.At(place.CPU), n.UsedNonZero.At(place.Memory)}
		n.ports = maps.Clone(n.Ports)
		n.index = o.trial.Set(n.Node)
		o.nodeOf[n.index] = int32(i)
	}
	o.placer = place.NewPlacer(o.trial, s.Place)
	return o
}

// lift takes a pod from its node.
func (o *occupancy) lift(p *pod) {
	if !p.lifted {
		p.lifted = true
		o.change(p, -1)
	}
}

// putBack undoes lift.
func (o *occupancy) putBack(p *pod) {
	if p.lifted {
		p.lifted = false
		o.change(p, 1)
	}
}

func (o *occupancy) change(p *pod, times int64) {
	n := &o.list[p.node]
	used := o.used[int(p.node)*o.width:][:o.width]
	for dim, amount := range p.request {
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
	o.touch(p.node)
}

// touch brings what depends on a node up to date.
func (o *occupancy) touch(i int32) {
	if n := &o.list[i]; !n.stale {
		n.stale = true
		o.stale = append(o.stale, i)
	}
	for _, f := range o.classes {
		if f.eligible[i] {
			fit := o.fits(f, o.used, i)
			f.total += int64(fit - f.fit[i])
			f.fit[i] = fit
		}
	}
	if o.free != nil {
		o.contribute(i)
	}
}

// contribute updates what a node contributes to free.
func (o *occupancy) contribute(i int32) {
	serves := slices.ContainsFunc(o.classes, func(f *fits) bool { return f.fit[i] > 0 })
	base := int(i) * o.width
	for dim := range o.width {
		free := int64(0)
		if serves {
			free = max(0, o.allocatable[base+dim]-o.used[base+dim])
		}
		o.free[dim] += free - o.part[base+dim]
		o.part[base+dim] = free
	}
}

// lacking returns the resource of which less is free than the claimant takes in any case, and how
// much less.
func (o *occupancy) lacking() (dim int, amount int64) {
	if len(o.classes) > 1 && o.free == nil {
		o.sum()
	}
	for dim, free := range o.free {
		if lack := o.least.At(dim) - free; lack > 0 {
			return dim, lack
		}
	}
	return 0, 0
}

// fits returns how many more pods of a class a node takes of which used are the amounts in use.
func (o *occupancy) fits(f *fits, used []int64, i int32) int32 {
	base := int(i) * o.width
	fit := int64(math.MaxInt32)
	for _, need := range f.needs {
		free := o.allocatable[base+need.dim] - used[base+need.dim]
		if free < need.amount {
			return 0
		}
		fit = min(fit, free/need.amount)
	}
	if len(f.class.Ports) > 0 {
		if slices.ContainsFunc(f.class.Ports, o.list[i].ports.Conflicts) {
			return 0
		}
		fit = 1
	}
	return int32(fit)
}

// count starts counting the pods of a claim's classes that fit.
func (o *occupancy) count(classes []*place.Class, least place.Vector) {
	o.classes, o.least, o.free = make([]*fits, len(classes)), least, nil
	for k, c := range classes {
		o.classes[k] = o.countOf(c)
	}
}

// sum makes free follow the nodes, which is worth its time only if there are places enough.
func (o *occupancy) sum() {
	o.free, o.part = make(place.Vector, o.width), slices.Grow(o.part[:0], len(o.used))[:len(o.used)]
	clear(o.part)
	for i := range o.list {
		o.contribute(int32(i))
	}
}

// countOf counts the pods of a class that fit.
func (o *occupancy) countOf(c *place.Class) *fits {
	f := o.counted[c.Key()]
	if f != nil && o.within == nil {
		f.wanted = 0
		return f
	}
	f = o.compile(c)
	if o.within != nil { // what is counted holds for one domain only
		f.eligible = slices.Clone(f.eligible)
		for i := range f.eligible {
			f.eligible[i] = f.eligible[i] && o.within[i]
		}
		f.fit, f.total = o.tally(f, o.used)
		return f
	}
	f.fit, f.total = o.tally(f, o.used)
	o.counted[c.Key()] = f
	return f
}

// compile prepares counting pods of a class.
func (o *occupancy) compile(c *place.Class) *fits {
	f := &fits{class: c, eligible: o.eligibleFor(c)}
	for dim, amount := range c.Request {
		if amount == 0 {
			continue
		}
		if dim >= o.width { // no node has this resource
			f.needs, f.eligible = nil, make([]bool, len(o.list))
			return f
		}
		f.needs = append(f.needs, need{dim, amount})
	}
	return f
}

// blank returns a number for each node, 0.
func (o *occupancy) blank() []int32 {
	last := len(o.spare) - 1
	if last < 0 {
		return make([]int32, len(o.list))
	}
	list := o.spare[last]
	if o.spare = o.spare[:last]; cap(list) < len(o.list) {
		return make([]int32, len(o.list))
	}
	list = list[:len(o.list)]
	clear(list)
	return list
}

// recycle forgets what was counted for earlier claims. There must be no claim.
func (o *occupancy) recycle() {
	for _, f := range o.counted {
		o.spare = append(o.spare, f.fit)
	}
	clear(o.counted)
}

// recyclePlaces does the same for rights.
func (o *occupancy) recyclePlaces(r *rights) {
	for _, p := range r.places {
		o.spare = append(o.spare, p.fit)
	}
	clear(r.places)
}

// same reports whether both have the same nodes, with the same numbers.
func (o *occupancy) same(before *occupancy) bool {
	if len(o.list) != len(before.list) {
		return false
	}
	for i := range o.list {
		if o.list[i].Name != before.list[i].Name {
			return false
		}
	}
	return true
}

// tally counts how many pods of a class fit on nodes of which used are the amounts in use.
func (o *occupancy) tally(f *fits, used []int64) (fit []int32, total int64) {
	fit = o.blank()
	if len(f.needs) == 0 || len(f.class.Ports) > 0 {
		for i := range fit {
			if f.eligible[i] {
				fit[i] = o.fits(f, used, int32(i))
				total += int64(fit[i])
			}
		}
		return fit, total
	}
	// Most nodes have no room for the first need, so the others are looked at for few.
	first, rest := f.needs[0], f.needs[1:]
	for i, at := 0, first.dim; i < len(fit); i, at = i+1, at+o.width {
		free := o.allocatable[at] - used[at]
		if free < first.amount || !f.eligible[i] {
			continue
		}
		least := min(free/first.amount, math.MaxInt32)
		for _, need := range rest {
			base := i*o.width + need.dim
			free := o.allocatable[base] - used[base]
			if free < need.amount {
				least = 0
				break
			}
			least = min(least, free/need.amount)
		}
		fit[i] = int32(least)
		total += least
	}
	return fit, total
}

// eligibleFor returns the nodes that take pods of the class as far as their objects say.
func (o *occupancy) eligibleFor(c *place.Class) []bool {
	key := c.StaticKey()
	if e := o.eligible[key]; e != nil {
		return e
	}
	if o.full(len(o.eligible), 1) {
		clear(o.eligible)
	}
	e := make([]bool, len(o.list))
	for i := range e {
		e[i] = c.Admits(&o.list[i].Node)
	}
	o.eligible[key] = e
	return e
}

// enough reports whether every class has as many places as the claimant needs at least. If the
// claimant has one class, then its minimum fits; otherwise it may.
func (o *occupancy) enough() bool {
	for _, f := range o.classes {
		if f.total < f.wanted {
			return false
		}
	}
	_, lack := o.lacking()
	return lack == 0
}

// place asks package place for the claimant's nodes, and leaves the nodes as they were.
func (o *occupancy) place(g place.Gang) place.Decision {
	o.sync()
	o.placements++
	d := o.placer.Place(g)
	if d.Shortage == nil {
		o.placer.Undo(g, d)
	}
	return d
}

// sync makes trial show the nodes as they are.
func (o *occupancy) sync() {
	for _, i := range o.stale {
		n := &o.list[i]
		n.stale = false
		state := n.Node
		state.Used = o.used[int(i)*o.width:][:o.width]
		state.UsedNonZero = n.nonZero[:]
		state.Ports = n.ports
		o.trial.Set(state)
	}
	o.stale = o.stale[:0]
}

// take puts pods of a class on a node for good.
func (o *occupancy) take(c *place.Class, i int32) {
	n := &o.list[i]
	used := o.used[int(i)*o.width:][:o.width]
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
	o.touch(i)
}
