package evict

import (
	"cmp"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// ref identifies a possible victim: a pod by its index, or a whole gang by the complement of its
// index.
type ref int32

// victims are the victims chosen so far, and what follows from them.
type victims struct {
	width int
	list  []ref
	at    []int32 // by possible victim (see Search.slot): index in list plus one, or 0

	// By queue and dimension: what the victims take, and how many of the victims on loan have some
	// of the resource. loans is the number of victims on loan, by queue.
	taken []int64
	uses  []int
	loans []int

	levels []int32 // priorities of possible victims, highest first
	counts []int   // victims by level
	broken []int   // victims by budget
	price_ price   // without counts
}

// price is a Cost in the making.
type price struct {
	disruptions, gangs int
	counts             []int
	work, age          int64
	pods               int
}

func (v *victims) reset(f *Search) {
	v.width = f.nodes.width
	v.list, v.at = v.list[:0], make([]int32, len(f.nodes.pods)+len(f.gangs))
	v.taken = make([]int64, len(f.queues.list)*v.width)
	v.uses = make([]int, len(f.queues.list)*v.width)
	v.loans = make([]int, len(f.queues.list))
	v.broken = make([]int, len(f.state.Budgets))
	v.price_ = price{}
}

// setLevels numbers the priorities of the candidates: of gangs, and of pods that may go singly.
func (v *victims) setLevels(f *Search) {
	v.levels = v.levels[:0]
	for _, i := range f.candidates {
		g := &f.gangs[i]
		v.levels = append(v.levels, g.priority)
		for _, id := range g.pods {
			if p := &f.nodes.pods[id]; p.Priority != g.priority && g.spare > 0 {
				v.levels = append(v.levels, p.Priority)
			}
		}
	}
	slices.SortFunc(v.levels, func(a, b int32) int { return cmp.Compare(b, a) })
	v.levels = slices.Compact(v.levels)
	v.counts = make([]int, len(v.levels))
	level := func(priority int32) int {
		at, _ := slices.BinarySearchFunc(v.levels, priority, func(a, b int32) int { return cmp.Compare(b, a) })
		return at
	}
	for _, i := range f.candidates {
		g := &f.gangs[i]
		g.level = level(g.priority)
		for _, id := range g.pods {
			p := &f.nodes.pods[id]
			if p.level = g.level; p.Priority != g.priority && g.spare > 0 {
				p.level = level(p.Priority)
			}
		}
	}
}

// slot returns the position of a possible victim in lists of all of them.
func (f *Search) slot(v ref) int {
	if v < 0 {
		return len(f.nodes.pods) + int(^v)
	}
	return int(v)
}

// gangOf returns the index of the gang of a possible victim.
func (f *Search) gangOf(v ref) int32 {
	if v < 0 {
		return int32(^v)
	}
	return f.nodes.pods[v].gang
}

// isVictim reports whether a possible victim is one.
func (f *Search) isVictim(v ref) bool { return f.victims.at[f.slot(v)] > 0 }

// price returns what the victims cost.
func (v *victims) price() price {
	p := v.price_
	p.counts = v.counts
	return p
}

// cost converts a price.
func (p price) cost(levels []int32) Cost {
	c := Cost{Disruptions: p.disruptions, Gangs: p.gangs, Work: time.Duration(p.work), AgeSeconds: p.age, Pods: p.pods}
	for i, n := range p.counts {
		if n > 0 {
			c.Priorities = append(c.Priorities, PriorityCount{levels[i], n})
		}
	}
	return c
}

func (p price) compare(o price) int {
	return cmp.Or(cmp.Compare(p.disruptions, o.disruptions), cmp.Compare(p.gangs, o.gangs),
		slices.Compare(p.counts, o.counts), cmp.Compare(p.work, o.work), cmp.Compare(p.age, o.age),
		cmp.Compare(p.pods, o.pods))
}

// clone returns a price that later victims do not change.
func (p price) clone() price {
	p.counts = slices.Clone(p.counts)
	return p
}

// victim returns the gang of a possible victim, and what the victim has.
func (f *Search) victim(v ref) (*gang, place.Vector) {
	if v < 0 {
		g := &f.gangs[^v]
		return g, g.sum
	}
	p := &f.nodes.pods[v]
	return &f.gangs[p.gang], p.request
}

// take makes a possible victim a victim, if the rules allow that beside the other victims. Pods of a
// gang that were victims singly become part of the whole gang; they are replaced, and untake makes
// them victims again.
func (f *Search) take(v ref) (replaced []ref, ok bool) {
	g, request := f.victim(v)
	if v >= 0 {
		p := &f.nodes.pods[v]
		t := &g.tasks[p.task]
		if !f.may[v] || g.gone || p.lifted || g.lost >= g.spare || t.lost >= t.spare || f.refuses(g, request, false) != "" {
			return nil, false
		}
		f.force(v)
		return nil, true
	}
	if !g.whole || g.gone {
		return nil, false
	}
	replaced = f.dropSingle(g)
	if f.refuses(g, g.sum, false) != "" {
		f.forceAll(replaced)
		return nil, false
	}
	f.force(v)
	return replaced, true
}

// untake undoes take.
func (f *Search) untake(v ref, replaced []ref) {
	f.drop(v)
	f.forceAll(replaced)
}

func (f *Search) forceAll(list []ref) {
	for _, v := range list {
		f.force(v)
	}
}

// dropSingle drops the pods of a gang that are victims singly, and returns them.
func (f *Search) dropSingle(g *gang) []ref {
	if g.lost == 0 {
		return nil
	}
	var single []ref
	for _, id := range g.pods {
		if f.isVictim(ref(id)) {
			single = append(single, ref(id))
			f.drop(ref(id))
		}
	}
	return single
}

// force makes a possible victim a victim, without asking whether that is allowed.
func (f *Search) force(v ref) {
	f.victims.list = append(f.victims.list, v)
	f.victims.at[f.slot(v)] = int32(len(f.victims.list))
	f.account(v, 1)
	f.each(v, f.lift)
}

// drop undoes force.
func (f *Search) drop(v ref) {
	i := f.victims.at[f.slot(v)]
	last := len(f.victims.list) - 1
	moved := f.victims.list[last]
	f.victims.list[i-1] = moved
	f.victims.at[f.slot(moved)] = i
	f.victims.list = f.victims.list[:last]
	f.victims.at[f.slot(v)] = 0
	f.account(v, -1)
	f.each(v, f.putBack)
}

// each calls do for the pods of a victim.
func (f *Search) each(v ref, do func(int32)) {
	if v >= 0 {
		do(int32(v))
		return
	}
	for _, id := range f.gangs[^v].pods {
		do(id)
	}
}

// account counts a victim (times = 1) or no longer counts it (times = -1).
func (f *Search) account(v ref, times int) {
	g, request := f.victim(v)
	s := &f.victims
	p := &s.price_
	if v < 0 {
		g.gone = times > 0
		p.gangs += times
		p.work += int64(times) * g.work
		p.age += int64(times) * g.age
		p.pods += times * len(g.pods)
	} else {
		pod := &f.nodes.pods[v]
		g.lost += times
		g.tasks[pod.task].lost += times
		p.work += int64(times) * pod.work
		p.age += int64(times) * pod.age
		p.pods += times
	}
	s.counts[f.single(v).level] += times
	if len(s.broken) > 0 {
		f.each(v, func(id int32) { p.disruptions += f.disrupt(id, times) })
	}
	for _, q := range g.common {
		for dim, amount := range request {
			s.taken[int(q)*s.width+dim] += int64(times) * amount
		}
	}
	for _, q := range g.levels {
		base := int(q) * s.width
		if g.onLoan() {
			s.loans[q] += times
		}
		for dim, amount := range request {
			s.taken[base+dim] += int64(times) * amount
			if amount > 0 && g.onLoan() {
				s.uses[base+dim] += times
			}
		}
	}
}

// disrupt counts a pod against its budgets, and returns the change of the number of disruptions
// beyond them.
func (f *Search) disrupt(id int32, times int) int {
	change := 0
	for _, b := range f.nodes.pods[id].Budgets {
		allowed := f.budgets[b]
		before := max(0, f.victims.broken[b]-allowed)
		f.victims.broken[b] += times
		change += max(0, f.victims.broken[b]-allowed) - before
	}
	return change
}

// breaks returns how many disruptions beyond the budgets a possible victim would add, roughly.
func (f *Search) breaks(v ref) int { return f.over(v, 0) }

// exceeds returns how many disruptions beyond the budgets a victim adds, roughly.
func (f *Search) exceeds(v ref) int { return f.over(v, 1) }

func (f *Search) over(v ref, itself int) int {
	if len(f.victims.broken) == 0 {
		return 0
	}
	n := 0
	f.each(v, func(id int32) {
		for _, b := range f.nodes.pods[id].Budgets {
			if f.victims.broken[b]-itself >= f.budgets[b] {
				n++
			}
		}
	})
	return n
}

// dearer orders possible victims: those that cost more first.
func (f *Search) dearer(a, b ref) int { return f.cheaper(b, a) }

// cheaper orders possible victims: those that cost less first, apart from budgets. The order is
// total.
func (f *Search) cheaper(a, b ref) int {
	x, y := f.single(a), f.single(b)
	return cmp.Or(cmp.Compare(x.gangs, y.gangs), cmp.Compare(y.level, x.level), cmp.Compare(x.work, y.work),
		cmp.Compare(x.age, y.age), cmp.Compare(max(a, ^a), max(b, ^b)))
}

// value is what one victim costs.
type value struct {
	gangs, level int
	work, age    int64
}

func (f *Search) single(v ref) value {
	if v < 0 {
		g := &f.gangs[^v]
		return value{1, g.level, g.work, g.age}
	}
	p := &f.nodes.pods[v]
	return value{0, p.level, p.work, p.age}
}
