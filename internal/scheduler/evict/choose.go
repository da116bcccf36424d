package evict

import (
	"cmp"
	"container/heap"
	"slices"
)

// Bounds of the work for one claim. They count steps, not time, so that the outcome is the same
// every time.
const (
	// exchangesMax is how many pods are lifted, at most, to exchange victims for cheaper ones.
	exchangesMax = 200_000
	// checksMax is the number of possible victims that are considered for exchanges.
	checksMax = 2_000_000
	// placementsMax is the same in placements, for claimants whose fit cannot be counted.
	placementsMax = 32
	// allMax is the number of pods up to which victims are also chosen by leaving out the dearest.
	allMax = 4000
)

// choose finds victims. exact means that no cheaper ones exist.
//
// Victims are chosen in two ways, of which the cheaper outcome counts: by adding what frees most
// capacity for what it costs, and by taking all and leaving out the dearest first. From both, those
// that are not needed are dropped.
func (f *Search) choose() (found, exact bool) {
	var best []ref
	var cost price
	keep := func() {
		f.prune()
		if p := f.victims.price(); !found || p.compare(cost) < 0 {
			best, cost, found = slices.Clone(f.victims.list), p.clone(), true
		}
	}
	pods := 0
	for _, i := range f.candidates {
		pods += len(f.gangs[i].pods)
	}
	if f.add() {
		keep()
		f.exchange()
		keep()
	}
	if !found || pods <= allMax {
		f.putAllBack()
		if f.all() {
			keep()
			f.downgrade()
			f.exchange()
			keep()
		}
	}
	if pods <= f.exactPods {
		best, found, exact = f.exhaust(best, cost, found)
	}
	f.restore(best)
	return found, exact
}

// restore makes exactly these the victims.
func (f *Search) restore(list []ref) {
	keep := make(map[ref]bool, len(list))
	for _, v := range list {
		keep[v] = true
	}
	for _, v := range slices.Clone(f.victims.list) {
		if !keep[v] {
			f.drop(v)
		}
	}
	for _, v := range list {
		if !f.isVictim(v) {
			f.force(v)
		}
	}
}

// all makes all candidates victims, as far as that is allowed.
func (f *Search) all() bool {
	for _, v := range f.possibleVictims(true) {
		f.take(v)
	}
	return f.feasible()
}

// possibleVictims returns the gangs that may go whole, and the pods that may go singly, cheapest
// first. With onlyWhole, pods of gangs that may go whole are not in the list.
func (f *Search) possibleVictims(onlyWhole bool) []ref {
	list := f.unsorted(onlyWhole)
	slices.SortFunc(list, f.cheaper)
	return list
}

// unsorted is possibleVictims in no order.
func (f *Search) unsorted(onlyWhole bool) (list []ref) {
	for _, i := range f.candidates {
		g := &f.gangs[i]
		if g.whole {
			list = append(list, ^ref(i))
			if onlyWhole {
				continue
			}
		}
		for _, id := range g.pods {
			if f.may[id] && g.spare > 0 {
				list = append(list, ref(id))
			}
		}
	}
	return list
}

// prune drops the victims that are not needed, the dearest first. It tries to drop several at a time
// as long as that works. When it returns, every victim is needed.
func (f *Search) prune() {
	for {
		order := slices.Clone(f.victims.list)
		// Those first whose budgets are exceeded.
		slices.SortFunc(order, func(a, b ref) int {
			return cmp.Or(cmp.Compare(f.exceeds(b), f.exceeds(a)), f.dearer(a, b))
		})
		dropped := false
		for i, n := 0, 1; i < len(order); {
			n = min(n, len(order)-i)
			for _, v := range order[i : i+n] {
				f.drop(v)
			}
			if f.feasible() {
				dropped = true
				i, n = i+n, 2*n
				continue
			}
			for _, v := range order[i : i+n] {
				f.force(v)
			}
			if n == 1 {
				i++
			}
			n = max(1, n/2)
		}
		// Counting is monotone: what was needed once is needed with fewer victims, too. Placement
		// of several classes is greedy, so nothing is certain until a whole round drops nothing.
		if !dropped || f.claim.single {
			return
		}
	}
}

// downgrade replaces whole gangs among the victims by pods above their minimums, where that is
// enough.
func (f *Search) downgrade() {
	for _, v := range slices.Clone(f.victims.list) {
		if v >= 0 {
			continue
		}
		g := &f.gangs[^v]
		if g.spare <= 0 {
			continue
		}
		f.drop(v)
		var single []ref
		ok := f.feasible()
		for !ok {
			next, most := ref(0), int64(-1)
			for _, id := range g.pods {
				if _, ok := f.take(ref(id)); !ok {
					continue
				}
				if freed := f.freed(); freed > most || freed == most && f.cheaper(ref(id), next) < 0 {
					next, most = ref(id), freed
				}
				f.drop(ref(id))
			}
			if most < 0 {
				break
			}
			f.force(next)
			single = append(single, next)
			ok = f.feasible()
		}
		if !ok {
			for _, o := range single {
				f.drop(o)
			}
			f.force(v)
		}
	}
}

// freed measures how much of what the claimant needs is free.
func (f *Search) freed() int64 {
	n := int64(0)
	for _, class := range f.nodes.classes {
		n += min(class.total, class.wanted)
	}
	for _, l := range f.claim.limits {
		if l.lack <= 0 {
			n++
		}
	}
	return n
}

// exchange replaces victims by cheaper ones, one by one, beginning with the dearest.
func (f *Search) exchange() {
	order := slices.Clone(f.victims.list)
	slices.SortFunc(order, f.dearer)
	x := f.newExchange()
	lifts, until := 0, f.nodes.placements+placementsMax
	for _, v := range order {
		if !f.isVictim(v) {
			continue
		}
		g, _ := f.victim(v)
		before := f.victims.price().clone()
		f.drop(v)
		x.begin(v)
		done := false
		for k := 0; ; k++ {
			o, ok := x.possible.at(k)
			if !ok || o == v || k%16 == 0 && f.cheaper(o, v) > 0 && f.breaks(v) == 0 {
				break
			}
			if x.checks > checksMax || lifts > exchangesMax || f.nodes.placements >= until {
				break
			}
			if !x.mayReplace(o) {
				continue
			}
			if f.cheaper(o, v) > 0 && f.breaks(v) == 0 {
				break
			}
			if og, _ := f.victim(o); og == g && v >= 0 && o < 0 {
				continue
			}
			lifts += f.size(o)
			replaced, ok := f.take(o)
			if !ok {
				continue
			}
			if f.victims.price().compare(before) < 0 && f.feasible() {
				x.changed(o)
				done = true
				break
			}
			f.untake(o, replaced)
		}
		if !done {
			f.force(v)
		}
		if x.checks > checksMax || lifts > exchangesMax || f.nodes.placements >= until {
			return
		}
	}
}

// exchange knows which possible victims can replace one, without lifting pods.
type exchange struct {
	f        *Search
	possible *cheapest
	views    []view // by class
	// gains are, by gang and class, how many more pods fit if the gang leaves; -1: not known.
	gains []int64
	// near has, by gang, the round in which a victim was dropped from a node that the gang has pods on.
	near   []int32
	round  int32
	nodes  []int32 // of that victim
	checks int
}

func (f *Search) newExchange() *exchange {
	x := &exchange{f: f, gains: make([]int64, len(f.gangs)*len(f.nodes.classes)), near: make([]int32, len(f.gangs))}
	for i := range x.gains {
		x.gains[i] = -1
	}
	for _, class := range f.nodes.classes {
		x.views = append(x.views, view{o: f.nodes, class: class})
	}
	// Who frees nothing on nodes that no victim leaves cannot replace one.
	x.round++
	for _, v := range f.victims.list {
		x.visit(v)
	}
	list := f.unsorted(false)
	if len(f.claim.limits) == 0 {
		list = slices.DeleteFunc(list, func(v ref) bool {
			return x.near[f.gangOf(v)] != x.round && !x.frees(v)
		})
	}
	x.possible = newCheapest(f, list)
	return x
}

// frees reports whether more pods fit if a possible victim leaves.
func (x *exchange) frees(v ref) bool {
	for k := range x.views {
		if x.views[k].gain(x.f, v) > 0 {
			return true
		}
	}
	return false
}

// begin starts a round: a victim has been dropped.
func (x *exchange) begin(v ref) {
	x.round++
	x.nodes = x.nodes[:0]
	x.visit(v)
}

// visit notes the nodes of a victim, and the gangs there.
func (x *exchange) visit(v ref) {
	last := int32(-1)
	x.f.each(v, func(id int32) {
		i := x.f.nodes.pods[id].node
		if i == last {
			return
		}
		last = i
		x.nodes = append(x.nodes, i)
		for _, o := range x.f.nodes.list[i].pods {
			x.near[x.f.nodes.pods[o].gang] = x.round
		}
	})
}

// changed notes that the dropped victim has been replaced.
func (x *exchange) changed(by ref) {
	x.visit(by)
	for _, i := range x.nodes {
		for _, o := range x.f.nodes.list[i].pods {
			g := int(x.f.nodes.pods[o].gang) * len(x.views)
			for k := range x.views {
				x.gains[g+k] = -1
			}
		}
	}
}

// mayReplace reports whether there would be enough places if a possible victim left in place of the
// dropped one.
func (x *exchange) mayReplace(v ref) bool {
	x.checks++
	f := x.f
	if f.isVictim(v) {
		return false
	}
	g, some := f.gangOf(v), len(f.claim.limits) > 0
	for k := range x.views {
		class, gain := x.views[k].class, int64(0)
		switch known := &x.gains[int(g)*len(x.views)+k]; {
		case v >= 0 || x.near[g] == x.round:
			gain = x.views[k].gain(f, v)
		case *known < 0:
			*known = x.views[k].gain(f, v)
			gain = *known
		default:
			gain = *known
		}
		if class.total+gain < class.wanted {
			return false
		}
		some = some || gain > 0
	}
	return some
}

// cheapest is a list of possible victims, cheapest first. It is sorted only as far as it is read.
type cheapest struct {
	f      *Search
	sorted []ref
	rest   []ref // a heap
}

func newCheapest(f *Search, list []ref) *cheapest {
	c := &cheapest{f: f, rest: list}
	heap.Init(c)
	return c
}

// at returns the k-th of them.
func (c *cheapest) at(k int) (v ref, ok bool) {
	for len(c.sorted) <= k && len(c.rest) > 0 {
		last := len(c.rest) - 1
		c.sorted = append(c.sorted, c.rest[0])
		c.rest[0] = c.rest[last]
		if c.rest = c.rest[:last]; last > 0 {
			heap.Fix(c, 0)
		}
	}
	if k < len(c.sorted) {
		return c.sorted[k], true
	}
	return 0, false
}

// Len, Less, Swap, Push and Pop implement heap.Interface for the rest.
func (c *cheapest) Len() int           { return len(c.rest) }
func (c *cheapest) Less(i, j int) bool { return c.f.cheaper(c.rest[i], c.rest[j]) < 0 }
func (c *cheapest) Swap(i, j int)      { c.rest[i], c.rest[j] = c.rest[j], c.rest[i] }
func (c *cheapest) Push(x any)         { c.rest = append(c.rest, x.(ref)) }

func (c *cheapest) Pop() any {
	last := len(c.rest) - 1
	x := c.rest[last]
	c.rest = c.rest[:last]
	return x
}

// size returns the number of pods of a possible victim.
func (f *Search) size(v ref) int {
	if v < 0 {
		return len(f.gangs[^v].pods)
	}
	return 1
}
