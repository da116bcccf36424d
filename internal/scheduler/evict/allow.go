package evict

import (
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// allow decides which gangs may lose which pods for the claim, and counts the others by the reason.
func (f *Search) allow() *rights {
	f.forbid()
	f.victims.reset(f)
	r := &rights{exempt: map[string]int{}}
	relations := make([]relation, len(f.queues.list))
	known := make([]bool, len(f.queues.list))
	for i := range f.gangs {
		g := &f.gangs[i]
		if len(g.pods) == 0 {
			continue
		}
		if !known[g.queue] {
			relations[g.queue], known[g.queue] = f.queues.relate(f.state.Rules, f.claim, g.queue), true
		}
		g.relation = relations[g.queue]
		f.candidates = append(f.candidates, int32(i))
		if n := f.allowGang(g, r.exempt); n > 0 {
			r.gangs++
			r.pods += n
		} else {
			g.rule = 0
			f.candidates = f.candidates[:len(f.candidates)-1]
		}
	}
	f.victims.setLevels(f)
	f.setRanks()
	return r
}

// forbid undoes allow.
func (f *Search) forbid() {
	for _, i := range f.candidates {
		g := &f.gangs[i]
		g.relation, g.whole, g.spare = relation{}, false, 0
		for t := range g.tasks {
			g.tasks[t].spare = 0
		}
		for _, id := range g.pods {
			f.may[id] = false
		}
	}
	f.candidates, f.allowed = f.candidates[:0], nil
}

// setRanks orders the candidates, the gangs that cost less first.
func (f *Search) setRanks() {
	order := slices.Clone(f.candidates)
	slices.SortFunc(order, func(a, b int32) int { return f.cheaper(^ref(a), ^ref(b)) })
	for k, i := range order {
		f.rank[i] = int32(k)
	}
}

// allowGang decides about one gang, and returns the number of pods that it may lose.
func (f *Search) allowGang(g *gang, exempt map[string]int) int {
	c := f.claim
	own := g.Key == c.Key
	why := ""
	switch {
	case own:
		g.relation = relation{rule: Tasks}
	case g.rule == 0:
		why = g.reason
	case (g.rule == Preempt || g.rule == PreemptAcross) && g.Priority >= c.Priority:
		why = exemptPriority
	case g.Priority >= SystemCritical:
		why = exemptCritical
	case g.often:
		why = exemptOften
	}
	if why != "" {
		exempt[why] += len(g.pods)
		return 0
	}
	// 1. How many pods are above the minimum?
	g.spare = len(g.pods) - g.MinMember
	switch {
	case own:
		g.spare += c.minimum()
	case c.Surplus && g.MinMember <= 0:
		g.spare = len(g.pods) - 1 // not the last pod either
	}
	g.setSpare(own)
	// 2. Which pods may go at all?
	all := true
	for _, id := range g.pods {
		p := &f.nodes.pods[id]
		if why := f.exempt(g, p, own); why != "" {
			exempt[why]++
			all = false
			continue
		}
		f.may[id] = true
	}
	// 3. May the gang go whole? If not, which pods may go as surplus?
	tooMuch := f.refuses(g, g.sum, true)
	g.whole = all && !own && !c.Surplus && tooMuch == ""
	n := 0
	for _, id := range g.pods {
		p := &f.nodes.pods[id]
		if !f.may[id] || g.whole {
			continue
		}
		why := exemptMinimum
		switch {
		case own:
			why = exemptOwn
		case c.Surplus:
			why = exemptSurplus
		case all:
			why = tooMuch
		}
		if g.spare > 0 && g.tasks[p.task].spare > 0 {
			why = f.refuses(g, p.Request, true)
		}
		if why != "" {
			exempt[why]++
			f.may[id] = false
			continue
		}
		n++
	}
	if g.whole {
		n = len(g.pods)
	}
	return n
}

// setSpare sets how many pods each task may lose.
func (g *gang) setSpare(own bool) {
	for t := range g.tasks {
		g.tasks[t].spare = g.tasks[t].pods - g.tasks[t].min
		if g.tasks[t].spare < 0 && !own {
			g.spare = 0 // the gang is below its minimum
		}
	}
}

// minimum returns the number of pods that the claimant's minimum adds to its gang.
func (c *claim) minimum() int {
	n := 0
	for _, d := range c.Demands {
		n += d.Min
	}
	return max(n, c.MinMember)
}

// exempt returns why a pod may not be evicted for the claim, or nothing.
func (f *Search) exempt(g *gang, p *pod, own bool) string {
	switch {
	case p.Protected:
		return exemptProtected
	case p.Priority >= SystemCritical:
		return exemptCritical
	case p.cools(f.state.Now):
		return exemptCooling
	case own && p.Priority >= f.claim.TaskPriority:
		return exemptOwn
	case (g.rule == Preempt || g.rule == PreemptAcross) && p.Priority >= f.claim.Priority:
		return exemptPriority
	}
	return ""
}

// refuses returns why a victim would take too much of the queues that it is in, in addition to the
// victims chosen so far; or nothing. alone means that no victims are chosen.
func (f *Search) refuses(g *gang, amount place.Vector, alone bool) string {
	v := &f.victims
	for _, i := range g.common {
		q, taken := &f.queues.list[i], v.taken[int(i)*v.width:][:v.width]
		for dim, a := range amount {
			left := q.used.At(dim) - taken[dim] - a + f.claim.least.At(dim)
			if floor := q.guarantee.At(dim); a > 0 && floor > 0 && left < min(floor, q.used.At(dim)) {
				return exemptGuarantee
			}
		}
	}
	for _, i := range g.levels {
		q, taken := &f.queues.list[i], v.taken[int(i)*v.width:][:v.width]
		for dim, a := range amount {
			if floor := q.guarantee.At(dim); a > 0 && floor > 0 && q.used.At(dim)-taken[dim]-a < floor {
				return exemptGuarantee
			}
		}
		if !g.onLoan() {
			continue
		}
		if !above(q, taken, nil, amount) || !alone && !f.othersStay(i, amount) {
			return exemptShare
		}
	}
	return ""
}

// onLoan reports whether a victim is allowed only as long as its queue has more than it deserves.
func (g *gang) onLoan() bool { return g.rule == Reclaim || g.rule == PreemptAcross }

// above reports whether a queue has more than it deserves of a resource that a victim has, when all
// other victims are gone: taken, and also, which may be nil. Then the victim cannot claim its
// resources back. If what the queue deserves follows from weights, it must keep that much. A queue that
// does not say what it deserves of them has no claim either.
func above(q *queue, taken []int64, also, victim place.Vector) bool {
	stated := false
	for dim, a := range victim {
		if a <= 0 {
			continue
		}
		if deserved, ok := at(q.deserved, dim); ok {
			stated = true
			left := q.used.At(dim) - taken[dim] - also.At(dim)
			if left > deserved && (!q.weighed || left-a >= deserved) {
				return true
			}
		}
	}
	return !stated
}

// othersStay reports whether the victims chosen so far in a queue are still allowed when another
// one takes amount.
func (f *Search) othersStay(i int32, amount place.Vector) bool {
	v := &f.victims
	q, base := &f.queues.list[i], int(i)*v.width
	if v.loans[i] == 0 {
		return true
	}
	// They are allowed if the queue keeps what it deserves of a resource that all of them have, or
	// deserves nothing of any resource that one of them has.
	stated := false
	for dim := range v.width {
		deserved, ok := at(q.deserved, dim)
		if !ok || v.uses[base+dim] == 0 {
			continue
		}
		stated = true
		if v.uses[base+dim] == v.loans[i] && q.used.At(dim)-v.taken[base+dim]-amount.At(dim) >= deserved {
			return true
		}
	}
	if !stated {
		return true
	}
	for _, o := range v.list {
		g, request := f.victim(o)
		if !g.onLoan() || !slices.Contains(g.levels, i) {
			continue
		}
		// o itself is part of taken, and amount is not.
		if !above(q, v.taken[base:][:v.width], amount.Plus(request, -1), request) {
			return false
		}
	}
	return true
}
