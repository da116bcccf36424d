package evict

import (
	"cmp"
	"slices"
)

// Bounds of the work for one claim. They count steps, not time, so that the outcome is the same
// every time.
const (
	// roundsMax is how often package place is asked for a claimant of several classes while victims
	// are added.
	roundsMax = 64
	// exchangesMax is how many pods are lifted, at most, to exchange victims for cheaper ones.
	exchangesMax = 200_000
	// placementsMax is the same in placements, for claimants whose fit cannot be counted.
	placementsMax = 64
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
	if pods <= exactPods {
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
		if _, in := f.victims.at[v]; !in {
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

// possibleVictims returns the whole gangs that may go, cheapest first, and the pods of gangs that may
// only lose surplus. With or without the pods of gangs that may go whole.
func (f *Search) possibleVictims(onlyWhole bool) []ref {
	var list []ref
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
	slices.SortFunc(list, f.cheaper)
	return list
}

// prune drops the victims that are not needed, the dearest first. It tries to drop several at a time
// as long as that works. When it returns, every victim is needed.
func (f *Search) prune() {
	for {
		order := slices.Clone(f.victims.list)
		slices.SortFunc(order, func(a, b ref) int {
			return cmp.Or(cmp.Compare(f.breaks(b), f.breaks(a)), f.dearer(a, b))
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
	for k := range f.room.classes {
		n += min(f.room.classes[k].total, f.room.classes[k].wanted)
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
	possible := f.possibleVictims(false)
	w := &work{}
	for _, v := range order {
		if _, still := f.victims.at[v]; !still {
			continue
		}
		g, _ := f.victim(v)
		before := f.victims.price().clone()
		f.drop(v)
		done := false
		for _, o := range possible {
			if o == v || f.cheaper(o, v) > 0 && f.breaks(v) == 0 {
				break
			}
			if _, in := f.victims.at[o]; in || w.spent(f, o) {
				continue
			}
			if og, _ := f.victim(o); og == g && v >= 0 && o < 0 {
				continue
			}
			replaced, ok := f.take(o)
			if !ok {
				continue
			}
			if f.victims.price().compare(before) < 0 && f.feasible() {
				done = true
				break
			}
			f.untake(o, replaced)
		}
		if !done {
			f.force(v)
		}
		if w.lifts > exchangesMax || w.placements > placementsMax {
			return
		}
	}
}

// work counts the steps of exchange.
type work struct{ lifts, placements int }

// spent counts one trial, and reports whether there have been too many.
func (w *work) spent(f *Search, v ref) bool {
	w.lifts++
	if v < 0 {
		w.lifts += len(f.gangs[^v].pods)
	}
	if !f.claim.single && f.room.enough() {
		w.placements++
	}
	return w.lifts > exchangesMax || w.placements > placementsMax
}

// add adds victims until the claimant fits.
func (f *Search) add() bool {
	if !f.addForLimits() {
		return false
	}
	wanted := make([]int64, len(f.room.classes))
	for k := range wanted {
		wanted[k] = f.room.classes[k].wanted
	}
	var s *steps
	for round := range roundsMax {
		for k := range wanted {
			for f.room.classes[k].total < wanted[k] {
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
		d := f.room.place(f.claim.gang)
		if d.Shortage == nil {
			return true
		}
		// Several classes compete for the same nodes: more of the class that does not fit.
		k := f.claim.class[d.Shortage.Demand]
		missing := int64(max(1, d.Shortage.Wanted-d.Shortage.Fit)) << min(round/4, 8)
		wanted[k] = f.room.classes[k].total + missing
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
		for f.claim.limits[i].lack > 0 {
			if !f.addForLimit(i, possible) {
				return false
			}
		}
	}
	return true
}

// addForLimit adds the victim that gives back most to a limit; surplus first.
func (f *Search) addForLimit(i int, possible []ref) bool {
	l := &f.claim.limits[i]
	best, most, found := ref(0), int64(0), false
	for _, v := range possible {
		g, request := f.victim(v)
		if _, in := f.victims.at[v]; in || !slices.Contains(f.queues.list[g.queue].path, l.queue) {
			continue
		}
		gives := min(l.lack, request.At(l.dim))
		if found && best >= 0 && v < 0 {
			break // pods are before gangs
		}
		if gives <= most {
			continue
		}
		if replaced, ok := f.take(v); ok {
			best, most, found = v, gives, true
			f.untake(v, replaced)
		}
	}
	if found {
		f.take(best)
	}
	return found
}

// steps adds victims for one class, node by node and gang by gang.
type steps struct {
	f     *Search
	class int
	nodes []bundle
	gangs []gain
	best  []candidate

	// Scratch space.
	stack   []int32
	chosen  []ref
	freeing []freeing
	order   []int32
}

// bundle is the least that has to leave a node for one more pod of the class.
type bundle struct {
	state   int8 // unknown, possible or impossible
	victims []ref
	score
}

// gain is what a whole gang frees on all its nodes.
type gain struct {
	state int8
	score
}

// score says how good a step is.
type score struct {
	breaks int   // disruptions beyond budgets
	whole  int   // gangs
	pods   int64 // how many more pods of the class fit
	level  int   // of the highest priority among the victims
	work   int64
}

const (
	unknown = iota
	possible
	impossible
)

func (f *Search) newSteps(class int) *steps {
	return &steps{f: f, class: class, nodes: make([]bundle, len(f.room.nodes)), gangs: make([]gain, len(f.gangs))}
}

// compare orders steps, the best first: fewer disruptions, then fewer gangs per pod of the claimant,
// then lower priority.
func (a *score) compare(b *score) int {
	if c := cmp.Compare(a.breaks, b.breaks); c != 0 {
		return c
	}
	if c := cmp.Compare(min(a.whole, 1), min(b.whole, 1)); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(int64(a.whole)*b.pods, int64(b.whole)*a.pods), cmp.Compare(b.level, a.level))
}

// workPerPod is the work that is lost for one pod of the claimant.
func (a *score) workPerPod() float64 { return float64(a.work) / float64(a.pods) }

// candidate is a step that is as good as any other: the bundle of a node, or a whole gang.
type candidate struct {
	score
	node, gang int32 // one of them is negative
}

// advance adds the best victims: bundles of nodes, and gangs. It adds all that are equally good and
// do not touch each other, as long as pods are missing. It returns false if there are none.
func (s *steps) advance(wanted int64) bool {
	f := s.f
	total := &f.room.classes[s.class].total
	for {
		missing := wanted - *total
		s.best = s.best[:0]
		for i := range s.nodes {
			b := &s.nodes[i]
			if b.state == unknown {
				s.examine(int32(i))
			}
			if b.state == possible {
				s.consider(candidate{b.score, int32(i), -1}, missing)
			}
		}
		for _, i := range f.candidates {
			g := &s.gangs[i]
			if !f.gangs[i].whole || f.gangs[i].gone {
				continue
			}
			if g.state == unknown {
				s.weigh(i)
			}
			if g.state == possible {
				s.consider(candidate{g.score, -1, i}, missing)
			}
		}
		if len(s.best) == 0 {
			return false
		}
		slices.SortFunc(s.best, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(a.workPerPod(), b.workPerPod()), cmp.Compare(a.node, b.node), cmp.Compare(a.gang, b.gang))
		})
		if s.takeBest(wanted) {
			return true
		}
	}
}

// consider keeps a step if none is better.
func (s *steps) consider(c candidate, missing int64) {
	c.pods = min(c.pods, missing)
	if len(s.best) > 0 {
		switch order := c.compare(&s.best[0].score); {
		case order > 0:
			return
		case order < 0:
			s.best = s.best[:0]
		}
	}
	s.best = append(s.best, c)
}

// takeBest takes the best steps, and reports whether it took any.
func (s *steps) takeBest(wanted int64) bool {
	total := &s.f.room.classes[s.class].total
	taken := false
	for _, c := range s.best {
		missing := wanted - *total
		if missing <= 0 || taken && c.pods > missing {
			break // what is best now depends on what is missing
		}
		state, list := &s.gangs[max(c.gang, 0)].state, []ref{^ref(c.gang)}
		if c.gang < 0 {
			state, list = &s.nodes[c.node].state, s.nodes[c.node].victims
		}
		switch {
		case *state != possible: // changed by an earlier step
		case s.take(list):
			taken = true
		default:
			*state = impossible
		}
	}
	return taken
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
			n := f.room.pods[id].node
			if s.nodes[n].state == unknown {
				return
			}
			s.nodes[n].state = unknown
			for _, o := range f.room.nodes[n].pods {
				s.gangs[f.room.pods[o].gang].state = unknown
			}
		})
	}
	return true
}

// weigh computes what a whole gang frees.
func (s *steps) weigh(i int32) {
	f, g := s.f, &s.f.gangs[i]
	c := &f.room.classes[s.class]
	before := c.total
	s.stack = s.stack[:0]
	for _, id := range g.pods {
		if p := &f.room.pods[id]; !p.lifted && c.eligible[p.node] {
			f.lift(id)
			s.stack = append(s.stack, id)
		}
	}
	w := &s.gangs[i]
	w.score = score{breaks: f.breaks(^ref(i)), whole: 1, pods: c.total - before, level: g.level, work: g.work}
	for _, id := range s.stack {
		f.putBack(id)
	}
	if w.state = possible; w.pods <= 0 {
		w.state = impossible
	}
}

// examine finds the least that has to leave a node for one more pod of the class: surplus, cheapest
// first, and if that is not enough whole gangs, those that free most first. What is not needed is
// left out again, the dearest first.
func (s *steps) examine(i int32) {
	f := s.f
	b := &s.nodes[i]
	b.state, b.victims = impossible, b.victims[:0]
	c := &f.room.classes[s.class]
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
		for _, g := range s.wholes(i, c) {
			if c.fit[i] > before {
				break
			}
			s.onNode(i, g, f.lift)
			chosen = append(chosen, ^ref(g))
		}
	}
	if c.fit[i] > before {
		b.state = possible
	}
	// 3. Leave out what is not needed.
	slices.SortStableFunc(chosen, f.dearer)
	if b.state == possible {
		chosen = s.leaveOut(i, c, before, chosen)
		b.score = score{pods: int64(c.fit[i] - before), level: len(f.victims.levels)}
	}
	for _, v := range chosen {
		s.undo(i, v)
	}
	s.chosen = chosen
	for _, v := range chosen {
		one := f.single(v)
		b.breaks += f.breaks(v)
		b.whole += one.gangs
		b.level = min(b.level, one.level)
		b.work += one.work
		b.victims = append(b.victims, v)
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
	for _, id := range s.f.room.nodes[i].pods {
		if p := &s.f.room.pods[id]; p.gang == gang && !p.Leaving {
			do(id)
		}
	}
}

// surplus returns the pods of a node that may go singly, cheapest first, no more of a gang than it
// can spare.
func (s *steps) surplus(i int32) []int32 {
	f := s.f
	list := s.stack[:0]
	for _, id := range f.room.nodes[i].pods {
		p := &f.room.pods[id]
		g := &f.gangs[p.gang]
		if p.lifted || !f.may[id] || g.lost >= g.spare || g.tasks[p.task].lost >= g.tasks[p.task].spare {
			continue
		}
		list = append(list, id)
	}
	s.stack = list
	slices.SortFunc(list, func(a, b int32) int { return f.cheaper(ref(a), ref(b)) })
	for k := range list { // more than one of a gang
		p := &f.room.pods[list[k]]
		g := &f.gangs[p.gang]
		n, ofTask := 0, 0
		for _, o := range list[:k] {
			if o >= 0 && f.room.pods[o].gang == p.gang {
				n++
				if f.room.pods[o].task == p.task {
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

// wholes returns the gangs of a node that may go whole: those first that free most of what one more
// pod of the class lacks.
func (s *steps) wholes(i int32, c *fits) []int32 {
	f := s.f
	list := s.freeing[:0]
	base := int(i) * f.room.width
	for _, id := range f.room.nodes[i].pods {
		p := &f.room.pods[id]
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
			free := f.room.allocatable[base+n.dim] - f.room.used[base+n.dim]
			if lack := n.amount*int64(c.fit[i]+1) - free; lack > 0 {
				list[k].useful += min(1, float64(p.Request.At(n.dim))/float64(lack))
			}
		}
	}
	s.freeing = list
	slices.SortFunc(list, func(a, b freeing) int {
		return cmp.Or(cmp.Compare(b.useful, a.useful), f.cheaper(^ref(a.gang), ^ref(b.gang)))
	})
	s.order = s.order[:0]
	for _, l := range list {
		s.order = append(s.order, l.gang)
	}
	return s.order
}
