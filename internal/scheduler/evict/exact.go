package evict

import "slices"

// exactPods is the number of candidates' pods up to which all possibilities are searched, and
// exactSteps and exactPlacements bound that search.
const (
	exactPods       = 64
	exactSteps      = 50_000
	exactPlacements = 500
)

// exhaustion is a depth-first search of all sets of victims. At first all pods that may go are
// lifted. Gang by gang, the search decides what really goes, and puts the others back: so a branch
// ends as soon as the claimant cannot fit any more, or the victims cost more than the best known.
type exhaustion struct {
	f          *Search
	order      []int32 // candidates, dearest first
	best       []ref
	cost       price
	found      bool
	steps      int
	placements int
	cut        bool // the search was not finished
}

// exhaust returns the cheapest victims, given the best known. exact is false if the search was too
// long.
func (f *Search) exhaust(best []ref, cost price, found bool) (_ []ref, _, exact bool) {
	f.putAllBack()
	x := &exhaustion{f: f, best: best, cost: cost, found: found, order: slices.Clone(f.candidates)}
	slices.SortFunc(x.order, func(a, b int32) int { return f.dearer(^ref(a), ^ref(b)) })
	for _, i := range x.order {
		for _, id := range f.gangs[i].pods {
			if f.may[id] {
				f.lift(id)
			}
		}
	}
	x.gang(0)
	for _, i := range f.candidates {
		for _, id := range f.gangs[i].pods {
			f.putBack(id)
		}
	}
	return x.best, x.found, !x.cut
}

// spent counts a step, and reports whether there have been too many.
func (x *exhaustion) spent() bool {
	x.steps++
	if x.steps > exactSteps || x.placements > exactPlacements {
		x.cut = true
	}
	return x.cut
}

// hopeless reports whether the claimant cannot fit, or the victims cost too much.
func (x *exhaustion) hopeless() bool {
	if x.found && x.f.victims.price().compare(x.cost) >= 0 {
		return true
	}
	for _, l := range x.f.claim.limits {
		if l.lack > 0 {
			return true
		}
	}
	return !x.f.nodes.enough()
}

// gang decides about the k-th gang and those behind it.
func (x *exhaustion) gang(k int) {
	if x.spent() || x.hopeless() {
		return
	}
	f := x.f
	if k == len(x.order) {
		x.placements++
		if f.feasible() {
			x.best, x.cost, x.found = slices.Clone(f.victims.list), f.victims.price().clone(), true
		}
		return
	}
	i := x.order[k]
	g := &f.gangs[i]
	// 1. Some or none of its pods, within what it can spare.
	x.pod(k, 0)
	// 2. The whole gang.
	if g.whole && f.refuses(g, g.sum, false) == "" {
		f.account(^ref(i), 1)
		f.victims.list = append(f.victims.list, ^ref(i))
		x.gang(k + 1)
		f.victims.list = f.victims.list[:len(f.victims.list)-1]
		f.account(^ref(i), -1)
	}
}

// pod decides about the j-th pod of the k-th gang, and those behind it, when the gang is not evicted
// whole. It leaves the pods lifted.
func (x *exhaustion) pod(k, j int) {
	if x.spent() || x.hopeless() {
		return
	}
	f := x.f
	g := &f.gangs[x.order[k]]
	for j < len(g.pods) && !f.may[g.pods[j]] {
		j++
	}
	if j == len(g.pods) {
		x.gang(k + 1)
		return
	}
	id := g.pods[j]
	p := &f.nodes.pods[id]
	// 1. It stays.
	f.putBack(id)
	x.pod(k, j+1)
	f.lift(id)
	// 2. It goes.
	t := &g.tasks[p.task]
	if g.lost < g.spare && t.lost < t.spare && f.refuses(g, p.Request, false) == "" {
		f.account(ref(id), 1)
		f.victims.list = append(f.victims.list, ref(id))
		x.pod(k, j+1)
		f.victims.list = f.victims.list[:len(f.victims.list)-1]
		f.account(ref(id), -1)
	}
}
