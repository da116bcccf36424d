package evict

import (
	"cmp"
	"container/heap"
	"slices"
)

// roundsMax is how often package place is asked for a claimant of several classes while victims are
// added.
const roundsMax = 64

// add adds victims until the claimant fits.
func (f *Search) add() bool {
	if !f.addForLimits() {
		return false
	}
	wanted := make([]int64, len(f.nodes.classes))
	for k := range wanted {
		wanted[k] = f.nodes.classes[k].wanted
	}
	// The classes with the largest pods come first: what they need serves the others, too.
	order := make([]int, len(wanted))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(f.portion(f.nodes.classes[b].class.Request), f.portion(f.nodes.classes[a].class.Request))
	})
	var s *steps
	for round := range roundsMax {
		for _, k := range order {
			for f.nodes.classes[k].total < wanted[k] {
				if s == nil || s.class != k {
					s = f.newSteps(k)
				}
				if !s.advance(wanted[k]) {
					return false
				}
			}
		}
		if f.claim.single {
			return true
		}
		if dim, lack := f.nodes.lacking(); lack > 0 {
			c := &f.nodes.classes[order[0]]
			wanted[order[0]] = c.total + 1 + lack/max(1, c.class.Request.At(dim))
			continue
		}
		d := f.nodes.place(f.claim.gang)
		if d.Shortage == nil {
			return true
		}
		// Several classes compete for the same nodes: more of the class that does not fit.
		k := f.claim.class[d.Shortage.Demand]
		missing := int64(max(1, d.Shortage.Wanted-d.Shortage.Fit)) << min(round/4, 8)
		wanted[k] = f.nodes.classes[k].total + missing
	}
	return false
}

// addForLimits adds victims in the claimant's queues until the capabilities are kept.
func (f *Search) addForLimits() bool {
	if len(f.claim.limits) == 0 {
		return true
	}
	possible := f.possibleVictims(false)
	for i := range f.claim.limits {
		l := &f.claim.limits[i]
		gives := func(v ref) int64 {
			_, request := f.victim(v)
			return request.At(l.dim)
		}
		inside := slices.DeleteFunc(slices.Clone(possible), func(v ref) bool {
			g, _ := f.victim(v)
			return gives(v) <= 0 || !slices.Contains(f.queues.list[g.queue].path, l.queue)
		})
		// Surplus first, and then what gives back most.
		slices.SortStableFunc(inside, func(a, b ref) int {
			return cmp.Or(cmp.Compare(f.single(a).gangs, f.single(b).gangs), cmp.Compare(gives(b), gives(a)))
		})
		for _, v := range inside {
			if l.lack <= 0 {
				break
			}
			if _, in := f.victims.at[v]; !in {
				f.take(v)
			}
		}
		if l.lack > 0 {
			return false
		}
	}
	return true
}

// steps adds victims for one class, node by node and gang by gang. It keeps all possible steps in a
// heap. A step that changed is in the heap again; earlier entries have an older version.
type steps struct {
	f     *Search
	class int
	nodes []bundle
	gangs []gain
	heap  stepHeap
	dirty []int32 // nodes to examine

	// Scratch space.
	stack   []int32
	chosen  []ref
	freeing []freeing
}

// bundle is the least that has to leave a node for one more pod of the class.
type bundle struct {
	victims []ref
	version int32
	dirty   bool
}

// gain is what a whole gang frees on all its nodes.
type gain struct {
	version int32
	dirty   bool
}

// score says how good a step is.
type score struct {
	breaks int   // disruptions beyond budgets
	whole  int   // gangs
	pods   int64 // how many more pods of the class fit
	level  int   // of the highest priority among the victims
	work   int64
}

// compare orders steps, the best first: fewer disruptions, then fewer gangs per pod of the claimant,
// then lower priority, then less work per pod.
func (a *score) compare(b *score) int {
	switch {
	case a.breaks != b.breaks:
		return cmp.Compare(a.breaks, b.breaks)
	case (a.whole == 0) != (b.whole == 0):
		return cmp.Compare(a.whole, b.whole)
	}
	if x, y := int64(a.whole)*b.pods, int64(b.whole)*a.pods; x != y {
		return cmp.Compare(x, y)
	}
	if a.level != b.level {
		return cmp.Compare(b.level, a.level)
	}
	return cmp.Compare(float64(a.work)/float64(a.pods), float64(b.work)/float64(b.pods))
}

// step is a possible step: the bundle of a node, or a whole gang.
type step struct {
	score
	at      ref // the node, or the complement of the gang
	version int32
}

func (a *step) compare(b *step) int {
	return cmp.Or(a.score.compare(&b.score), cmp.Compare(a.at, b.at))
}

// stepHeap implements heap.Interface, with the best step first.
type stepHeap []step

func (h stepHeap) Len() int           { return len(h) }
func (h stepHeap) Less(i, j int) bool { return h[i].compare(&h[j]) < 0 }
func (h stepHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *stepHeap) Push(x any)        { *h = append(*h, x.(step)) }

func (h *stepHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func (f *Search) newSteps(class int) *steps {
	s := &steps{f: f, class: class, nodes: make([]bundle, len(f.nodes.list)), gangs: make([]gain, len(f.gangs))}
	for i := range s.nodes {
		s.examine(int32(i))
	}
	for _, i := range f.candidates {
		s.weigh(i)
	}
	return s
}

// advance adds the best victims: a bundle of one node, or one gang. It returns false if there are
// none.
func (s *steps) advance(wanted int64) bool {
	for _, i := range s.dirty {
		s.examine(i)
	}
	s.dirty = s.dirty[:0]
	missing := wanted - s.f.nodes.classes[s.class].total
	for len(s.heap) > 0 {
		if s.heap[0].pods > missing && s.valid(&s.heap[0]) {
			s.cap(missing)
		}
		best := heap.Pop(&s.heap).(step)
		switch {
		case !s.valid(&best):
		case best.at < 0 && s.gangs[^best.at].dirty:
			s.weigh(int32(^best.at))
		case best.at < 0 && s.take([]ref{best.at}), best.at >= 0 && s.take(s.nodes[best.at].victims):
			return true
		}
	}
	return false
}

// valid reports whether a step has not changed since it was put into the heap.
func (s *steps) valid(x *step) bool {
	if x.at < 0 {
		return s.gangs[^x.at].version == x.version && !s.f.gangs[^x.at].gone
	}
	return s.nodes[x.at].version == x.version
}

// cap rates the steps anew: those that would free more than is missing are not better for that.
func (s *steps) cap(missing int64) {
	for i := range s.heap {
		s.heap[i].pods = min(s.heap[i].pods, missing)
	}
	heap.Init(&s.heap)
}

// take makes all of them victims, or none. What depends on their nodes has to be examined again.
func (s *steps) take(list []ref) bool {
	f := s.f
	var before []ref
	if len(list) > 1 {
		before = slices.Clone(f.victims.list)
	}
	for i, v := range list {
		if _, ok := f.take(v); ok {
			continue
		}
		if i > 0 {
			f.restore(before)
		}
		return false
	}
	for _, v := range list {
		f.each(v, func(id int32) {
			i := f.nodes.pods[id].node
			if s.nodes[i].dirty {
				return
			}
			s.nodes[i].dirty = true
			s.dirty = append(s.dirty, i)
			for _, o := range f.nodes.list[i].pods {
				s.gangs[f.nodes.pods[o].gang].dirty = true
			}
		})
	}
	return true
}

// weigh computes what a whole gang frees.
func (s *steps) weigh(i int32) {
	f, g := s.f, &s.f.gangs[i]
	w := &s.gangs[i]
	w.dirty = false
	w.version++
	if !g.whole || g.gone {
		return
	}
	c := &f.nodes.classes[s.class]
	before := c.total
	s.stack = s.stack[:0]
	for _, id := range g.pods {
		if p := &f.nodes.pods[id]; !p.lifted && c.eligible[p.node] {
			f.lift(id)
			s.stack = append(s.stack, id)
		}
	}
	freed := c.total - before
	for _, id := range s.stack {
		f.putBack(id)
	}
	if freed > 0 {
		heap.Push(&s.heap, step{score{f.breaks(^ref(i)), 1, freed, g.level, g.work}, ^ref(i), w.version})
	}
}

// examine finds the least that has to leave a node for one more pod of the class: surplus, cheapest
// first, and if that is not enough whole gangs, those that free most first. What is not needed is
// left out again, the dearest first.
func (s *steps) examine(i int32) {
	f := s.f
	b := &s.nodes[i]
	b.victims, b.dirty = b.victims[:0], false
	b.version++
	c := &f.nodes.classes[s.class]
	if !c.eligible[i] {
		return
	}
	before := c.fit[i]
	// 1. Surplus.
	chosen := s.chosen[:0]
	for _, id := range s.surplus(i) {
		if c.fit[i] > before {
			break
		}
		f.lift(id)
		chosen = append(chosen, ref(id))
	}
	// 2. Whole gangs.
	if c.fit[i] == before {
		list := s.wholes(i, c)
		for len(list) > 0 && c.fit[i] == before {
			best := 0
			for k := range list {
				if s.freesMore(&list[k], &list[best]) {
					best = k
				}
			}
			g := list[best].gang
			list = slices.Delete(list, best, best+1)
			s.onNode(i, g, f.lift)
			chosen = append(chosen, ^ref(g))
		}
	}
	// 3. Leave out what is not needed.
	found := c.fit[i] > before
	slices.SortStableFunc(chosen, f.dearer)
	if found {
		chosen = s.leaveOut(i, c, before, chosen)
	}
	sc := score{pods: int64(c.fit[i] - before), level: len(f.victims.levels)}
	for _, v := range chosen {
		s.undo(i, v)
	}
	s.chosen = chosen
	if !found {
		return
	}
	for _, v := range chosen {
		one := f.single(v)
		sc.breaks += f.breaks(v)
		sc.whole += one.gangs
		sc.level = min(sc.level, one.level)
		sc.work += one.work
		b.victims = append(b.victims, v)
	}
	heap.Push(&s.heap, step{sc, ref(i), b.version})
	// A single gang may free capacity on other nodes, too.
	if g := chosen[0]; len(chosen) == 1 && g < 0 && s.gangs[^g].dirty {
		s.weigh(int32(^g))
	}
}

// leaveOut puts back what is not needed for one more pod of the class than before.
func (s *steps) leaveOut(i int32, c *fits, before int32, chosen []ref) []ref {
	needed := chosen[:0]
	for _, v := range chosen {
		s.undo(i, v)
		if c.fit[i] > before {
			continue
		}
		if v < 0 {
			s.onNode(i, int32(^v), s.f.lift)
		} else {
			s.f.lift(int32(v))
		}
		needed = append(needed, v)
	}
	return needed
}

// undo puts a victim's pods back on a node, except those that are victims for good.
func (s *steps) undo(i int32, v ref) {
	if v >= 0 {
		s.f.putBack(int32(v))
		return
	}
	s.onNode(i, int32(^v), func(id int32) {
		if _, single := s.f.victims.at[ref(id)]; !single {
			s.f.putBack(id)
		}
	})
}

// onNode calls do for a gang's pods on a node.
func (s *steps) onNode(i, gang int32, do func(int32)) {
	for _, id := range s.f.nodes.list[i].pods {
		if p := &s.f.nodes.pods[id]; p.gang == gang && !p.Leaving {
			do(id)
		}
	}
}

// surplus returns the pods of a node that may go singly, cheapest first, no more of a gang than it
// can spare.
func (s *steps) surplus(i int32) []int32 {
	f := s.f
	list := s.stack[:0]
	for _, id := range f.nodes.list[i].pods {
		p := &f.nodes.pods[id]
		g := &f.gangs[p.gang]
		if p.lifted || !f.may[id] || g.lost >= g.spare || g.tasks[p.task].lost >= g.tasks[p.task].spare {
			continue
		}
		list = append(list, id)
	}
	s.stack = list
	slices.SortFunc(list, func(a, b int32) int {
		return cmp.Or(cmp.Compare(f.breaks(ref(a)), f.breaks(ref(b))), f.cheaper(ref(a), ref(b)))
	})
	for k := range list { // more than one of a gang
		p := &f.nodes.pods[list[k]]
		g := &f.gangs[p.gang]
		n, ofTask := 0, 0
		for _, o := range list[:k] {
			if o >= 0 && f.nodes.pods[o].gang == p.gang {
				n++
				if f.nodes.pods[o].task == p.task {
					ofTask++
				}
			}
		}
		if g.lost+n >= g.spare || g.tasks[p.task].lost+ofTask >= g.tasks[p.task].spare {
			list[k] = -1
		}
	}
	return slices.DeleteFunc(list, func(id int32) bool { return id < 0 })
}

// freeing says how much a gang frees on a node of what one more pod lacks.
type freeing struct {
	gang   int32
	useful float64
}

// freesMore reports whether a gang should go rather than another.
func (s *steps) freesMore(a, b *freeing) bool {
	x, y := ^ref(a.gang), ^ref(b.gang)
	if len(s.f.budgets) > 0 {
		if c := cmp.Compare(s.f.breaks(x), s.f.breaks(y)); c != 0 {
			return c < 0
		}
	}
	if a.useful != b.useful {
		return a.useful > b.useful
	}
	return s.f.cheaper(x, y) < 0
}

// wholes returns the gangs of a node that may go whole, and how much each frees.
func (s *steps) wholes(i int32, c *fits) []freeing {
	f := s.f
	list := s.freeing[:0]
	base := int(i) * f.nodes.width
	for _, id := range f.nodes.list[i].pods {
		p := &f.nodes.pods[id]
		g := &f.gangs[p.gang]
		if p.lifted || !g.whole || g.gone {
			continue
		}
		k := slices.IndexFunc(list, func(l freeing) bool { return l.gang == p.gang })
		if k < 0 {
			k = len(list)
			list = append(list, freeing{gang: p.gang})
		}
		for _, n := range c.needs {
			free := f.nodes.allocatable[base+n.dim] - f.nodes.used[base+n.dim]
			if lack := n.amount*int64(c.fit[i]+1) - free; lack > 0 {
				list[k].useful += min(1, float64(p.request.At(n.dim))/float64(lack))
			}
		}
	}
	s.freeing = list
	return list
}
