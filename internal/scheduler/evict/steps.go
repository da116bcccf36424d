package evict

import (
	"cmp"
	"container/heap"
	"math"
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
	byClass := make([]*steps, len(wanted))
	for round := range roundsMax {
		for _, k := range order {
			for f.nodes.classes[k].total < wanted[k] {
				if byClass[k] == nil {
					byClass[k] = f.newSteps(f.nodes.classes[k])
				}
				added := byClass[k].advance(wanted[k])
				if added == nil {
					return false
				}
				for _, s := range byClass {
					if s != nil {
						s.changed(added)
					}
				}
			}
		}
		if f.claim.single {
			return true
		}
		if dim, lack := f.nodes.lacking(); lack > 0 {
			c := f.nodes.classes[order[0]]
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
			if !f.isVictim(v) {
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
	class *fits
	view  view
	nodes []bundle
	gangs []gain
	heap  stepHeap
	dirty []int32 // nodes to examine
	// capped is the greatest number of pods for which steps in the heap count.
	capped int64
	refs   []ref // what the bundles consist of

	// Scratch space.
	stack   []int32
	chosen  []leaver
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

// leaver is a victim of a bundle, with its pods on the node.
type leaver struct {
	ref
	pods []int32
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
	frees   int64 // score.pods, also if that is more than is missing
	at      ref   // the node, or the complement of the gang
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

// push and pop are heap.Push and heap.Pop without a copy of the step on Go's heap.
func (h *stepHeap) push(x step) {
	*h = append(*h, x)
	heap.Fix(h, len(*h)-1)
}

func (h *stepHeap) pop() step {
	x, last := (*h)[0], len(*h)-1
	(*h)[0] = (*h)[last]
	if *h = (*h)[:last]; last > 0 {
		heap.Fix(h, 0)
	}
	return x
}

func (f *Search) newSteps(class *fits) *steps {
	s := &steps{f: f, class: class, view: view{o: f.nodes, class: class}, nodes: make([]bundle, len(f.nodes.list)),
		gangs: make([]gain, len(f.gangs)), capped: math.MaxInt64}
	for i := range s.nodes {
		s.examine(int32(i))
	}
	for _, i := range f.candidates {
		s.weigh(i)
	}
	return s
}

// advance adds the best victims, a bundle of one node or one gang, and returns them. It returns nil
// if there are none.
func (s *steps) advance(wanted int64) []ref {
	for _, i := range s.dirty {
		s.examine(i)
	}
	s.dirty = s.dirty[:0]
	missing := wanted - s.class.total
	if missing > s.capped {
		s.cap(missing)
	}
	for len(s.heap) > 0 {
		if s.heap[0].pods > missing && s.valid(&s.heap[0]) {
			s.cap(missing)
		}
		best := s.heap.pop()
		if !s.valid(&best) {
			continue
		}
		victims := []ref{best.at}
		if best.at >= 0 {
			victims = s.nodes[best.at].victims
		} else if s.gangs[^best.at].dirty {
			s.weigh(int32(^best.at))
			continue
		}
		if s.f.takeAll(victims) {
			return victims
		}
	}
	return nil
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
	s.capped = missing
	for i := range s.heap {
		s.heap[i].pods = min(s.heap[i].frees, missing)
	}
	heap.Init(&s.heap)
}

// takeAll makes all of them victims, or none.
func (f *Search) takeAll(list []ref) bool {
	var replaced [][]ref
	for i, v := range list {
		singles, ok := f.take(v)
		if !ok {
			for k := i - 1; k >= 0; k-- {
				f.untake(list[k], replaced[k])
			}
			return false
		}
		if len(list) > 1 {
			replaced = append(replaced, singles)
		}
	}
	return true
}

// changed notes that there are new victims: what depends on their nodes has to be examined again.
func (s *steps) changed(victims []ref) {
	f := s.f
	for _, v := range victims {
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
	if freed := s.view.gain(f, ^ref(i)); freed > 0 {
		s.push(score{f.breaks(^ref(i)), 1, freed, g.level, g.work}, ^ref(i), w.version)
	}
}

// push puts a step into the heap.
func (s *steps) push(x score, at ref, version int32) {
	frees := x.pods
	x.pods = min(x.pods, s.capped)
	s.heap.push(step{x, frees, at, version})
}

// examine finds the least that has to leave a node for one more pod of the class: surplus, cheapest
// first, and if that is not enough whole gangs, those that free most first. What is not needed is
// left out again, the dearest first.
func (s *steps) examine(i int32) {
	f, v := s.f, &s.view
	b := &s.nodes[i]
	b.victims, b.dirty = nil, false
	b.version++
	if !s.class.eligible[i] {
		return
	}
	before := int64(s.class.fit[i])
	v.look(i)
	// 1. Surplus.
	chosen := s.chosen[:0]
	surplus := s.surplus(i)
	for k, id := range surplus {
		if v.takes(before + 1) {
			break
		}
		v.without(&f.nodes.pods[id], 1)
		chosen = append(chosen, leaver{ref(id), surplus[k : k+1]})
	}
	// 2. Whole gangs.
	if !v.takes(before + 1) {
		for _, l := range s.wholes(i, before+1) {
			if v.takes(before + 1) {
				break
			}
			// Its pods that have been chosen singly leave with it.
			chosen = slices.DeleteFunc(chosen, func(o leaver) bool {
				single := o.ref >= 0 && f.nodes.pods[o.ref].gang == l.gang
				if single {
					s.imagine(o, -1)
				}
				return single
			})
			g := leaver{^ref(l.gang), l.pods}
			s.imagine(g, 1)
			chosen = append(chosen, g)
		}
	}
	s.chosen = chosen
	if !v.takes(before + 1) {
		return
	}
	// 3. Leave out what is not needed.
	if len(chosen) > 1 {
		slices.SortStableFunc(chosen, func(a, b leaver) int { return f.dearer(a.ref, b.ref) })
		chosen = s.leaveOut(chosen, before+1)
	}
	sc := score{pods: v.fit() - before, level: len(f.victims.levels)}
	from := len(s.refs)
	for _, l := range chosen {
		one := f.single(l.ref)
		sc.breaks += f.breaks(l.ref)
		sc.whole += one.gangs
		sc.level = min(sc.level, one.level)
		sc.work += one.work
		s.refs = append(s.refs, l.ref)
	}
	b.victims = s.refs[from:len(s.refs):len(s.refs)]
	s.push(sc, ref(i), b.version)
	// A single gang may free capacity on other nodes, too.
	if g := chosen[0].ref; len(chosen) == 1 && g < 0 && s.gangs[^g].dirty {
		s.weigh(int32(^g))
	}
}

// imagine removes the pods of a victim from the node in view (times = 1), or returns them
// (times = -1).
func (s *steps) imagine(l leaver, times int64) {
	for _, id := range l.pods {
		if p := &s.f.nodes.pods[id]; !p.lifted {
			s.view.without(p, times)
		}
	}
}

// leaveOut returns what is needed for a number of pods on the node in view.
func (s *steps) leaveOut(chosen []leaver, pods int64) []leaver {
	return slices.DeleteFunc(chosen, func(l leaver) bool {
		s.imagine(l, -1)
		if s.view.takes(pods) {
			return true
		}
		s.imagine(l, 1)
		return false
	})
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

// freeing is a gang that may go whole, with its pods on a node.
type freeing struct {
	gang   int32
	pods   []int32
	breaks int
	useful float64 // how much it frees of what one more pod lacks
}

// wholes returns the gangs of a node that may go whole, those that free most for a number of pods
// first.
func (s *steps) wholes(i int32, pods int64) []freeing {
	f := s.f
	list := s.freeing[:0]
	on := f.nodes.list[i].pods // sorted by gang
	for from := 0; from < len(on); {
		to, gang := from+1, f.nodes.pods[on[from]].gang
		for to < len(on) && f.nodes.pods[on[to]].gang == gang {
			to++
		}
		if g := &f.gangs[gang]; g.whole && !g.gone {
			list = append(list, freeing{gang, on[from:to], f.breaks(^ref(gang)), s.useful(on[from:to], pods)})
		}
		from = to
	}
	s.freeing = list
	slices.SortFunc(list, func(a, b freeing) int {
		return cmp.Or(cmp.Compare(a.breaks, b.breaks), cmp.Compare(b.useful, a.useful),
			cmp.Compare(f.rank[a.gang], f.rank[b.gang]))
	})
	return list
}

// useful measures how much of what a number of pods of the class lack on the node in view is freed.
func (s *steps) useful(freed []int32, pods int64) (sum float64) {
	for k, n := range s.class.needs {
		lack := n.amount*pods - s.view.free[k]
		if lack <= 0 {
			continue
		}
		for _, id := range freed {
			if p := &s.f.nodes.pods[id]; !p.lifted {
				sum += min(1, float64(p.request.At(n.dim))/float64(lack))
			}
		}
	}
	return sum
}
