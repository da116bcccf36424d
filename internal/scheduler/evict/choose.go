package evict

import (
	"cmp"
	"slices"
)

// Bounds of the work for one claim. They count steps, not time, so that the outcome is the same
// every time.
const (
	// exchangesMax is how many pods are lifted, at most, to exchange victims for cheaper ones.
	exchangesMax = 200_000
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

// possibleVictims returns the gangs that may go whole, and the pods that may go singly, cheapest
// first. With onlyWhole, pods of gangs that may go whole are not in the list.
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
	for k := range f.nodes.classes {
		n += min(f.nodes.classes[k].total, f.nodes.classes[k].wanted)
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
	lifts, until := 0, f.nodes.placements+placementsMax
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
			if lifts > exchangesMax || f.nodes.placements >= until {
				break
			}
			if _, in := f.victims.at[o]; in {
				continue
			}
			lifts += f.size(o)
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
		if lifts > exchangesMax || f.nodes.placements >= until {
			return
		}
	}
}

// size returns the number of pods of a possible victim.
func (f *Search) size(v ref) int {
	if v < 0 {
		return len(f.gangs[^v].pods)
	}
	return 1
}
