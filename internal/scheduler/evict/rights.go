package evict

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// rightsKey is equal for claims that may evict the same pods.
type rightsKey struct {
	queue int32
	// guaranteed and deserving say, for the n lowest queues of the claimant's path (bit n-1), whether
	// they stay within what they guarantee, or deserve.
	guaranteed, deserving uint32
	lower                 int // priorities of gangs and pods that are lower than the claimant's
	surplus               bool
	// If the claimant's own gang has pods: the gang, the claim's TaskPriority and its minimum.
	own, taskPriority int32
	minimum           int
	// least is what the claimant adds in any case to queues that guarantee something.
	least string
}

// rights are what claims with one rightsKey may evict, and what that would give them at most. They
// hold until a plan is accepted: the cost of a claim that evictions cannot help does not depend on
// the number of pods.
type rights struct {
	gangs, pods int
	exempt      map[string]int // the other pods, by the reason
	// used is occupancy.used without the pods that may be evicted; gives is what these pods have, by
	// queue and dimension. most is what would be free on all nodes if as many left as the limits of
	// their queues allow.
	used, gives []int64
	most        []int64
	places      map[string]*places // by class key
	placer      *place.Placer      // of the nodes without these pods; nil until it is needed
}

// places are how many pods of a class fit, by node and in all.
type places struct {
	fit   []int32
	total int64
}

// rightsMax is the number of rights that are kept.
const rightsMax = 64

func (f *Search) rightsKey() rightsKey {
	c := f.claim
	k := rightsKey{queue: c.queue, surplus: c.Surplus, own: -1}
	path := f.queues.list[c.queue].path
	path = path[:len(path)-1]
	for n := range path {
		if f.queues.entitled(path[:n+1], c, true) {
			k.guaranteed |= 1 << n
		}
		if f.queues.entitled(path[:n+1], c, false) {
			k.deserving |= 1 << n
		}
		var least []byte
		for dim, amount := range f.queues.list[path[n]].guarantee {
			if amount > 0 {
				least = strconv.AppendInt(append(least, '|'), int64(dim), 10)
				least = strconv.AppendInt(append(least, ':'), c.least.At(dim), 10)
			}
		}
		k.least += string(least)
	}
	if f.state.Rules.Preempt || f.state.Rules.PreemptAcross {
		k.lower, _ = slices.BinarySearch(f.priorities, c.Priority)
	}
	if i, found := slices.BinarySearchFunc(f.gangs, c.Key, func(g gang, key string) int {
		return cmp.Compare(g.Key, key)
	}); found && len(f.gangs[i].pods) > 0 {
		k.own, k.taskPriority, k.minimum = int32(i), c.TaskPriority, c.minimum()
	}
	return k
}

// rightsOf returns the rights of the claim.
func (f *Search) rightsOf() *rights {
	key := f.rightsKey()
	r := f.rights[key]
	if r == nil {
		if len(f.rights) == rightsMax {
			clear(f.rights)
		}
		r = f.allow()
		f.allowed, f.rights[key] = r, r
		f.sum(r)
		if key.own >= 0 {
			r.most = nil // pods of the claimant's own gang leave whatever its queue has
		}
	}
	return r
}

// grant makes allowed the rights of the claim.
func (f *Search) grant(r *rights) {
	if f.allowed != r {
		f.allow()
		f.allowed = r
	}
}

// sum adds up what the pods have that may be evicted.
func (f *Search) sum(r *rights) {
	if r.pods == 0 {
		return
	}
	width := f.nodes.width
	r.used, r.places = slices.Clone(f.nodes.used), map[string]*places{}
	r.gives = make([]int64, len(f.queues.list)*width)
	loans := make([]*loan, len(f.queues.list))
	var last *pod
	f.eachAllowed(func(p *pod, g *gang) {
		used, queue := r.used[int(p.node)*width:][:width], r.gives[int(g.queue)*width:][:width]
		for dim, amount := range p.request {
			used[dim] -= amount
			queue[dim] += amount
		}
		if g.onLoan() && (last == nil || last.gang != p.gang || !slices.Equal(last.request, p.request)) {
			for _, q := range g.levels {
				if loans[q] == nil {
					loans[q] = newLoan(&f.queues.list[q], width)
				}
				loans[q].add(g, p)
			}
		}
		last = p
	})
	// From the leaves up: what the limits of a queue forbid does not reach the queues above.
	most := slices.Clone(r.gives)
	for _, q := range f.queues.order {
		path, level := f.queues.list[q].path, !slices.Contains(f.queues.list[f.claim.queue].path, q)
		for dim := range width {
			amount := &most[int(q)*width+dim]
			if guarantee := f.queues.list[q].guarantee.At(dim); level && guarantee > 0 {
				*amount = min(*amount, max(0, f.queues.list[q].used.At(dim)-guarantee))
			}
			if loans[q] != nil {
				*amount = min(*amount, loans[q].bound(dim))
			}
			if len(path) > 1 {
				most[int(path[1])*width+dim] += *amount
				r.gives[int(path[1])*width+dim] += r.gives[int(q)*width+dim]
			}
		}
	}
	r.most = most[int(f.queues.root)*width:][:width]
	for i, used := range f.nodes.used {
		r.most[i%width] += max(0, f.nodes.allocatable[i]-used)
	}
}

// loan bounds what pods may leave a queue that is left what it deserves. Of each of them the queue
// must have more than it deserves of some resource when the others are gone, so of at least one
// resource no more can leave than the queue has above what it deserves, and one victim.
type loan struct {
	queue   *queue
	largest []int64   // of a victim
	ratios  []float64 // the most that a pod has of one resource for each unit of another
}

func newLoan(q *queue, width int) *loan {
	return &loan{queue: q, largest: make([]int64, width), ratios: make([]float64, width*width)}
}

func (l *loan) add(g *gang, p *pod) {
	width := len(l.largest)
	for dim := range l.largest {
		l.largest[dim] = max(l.largest[dim], g.sum.At(dim))
		if _, stated := at(l.queue.deserved, dim); !stated {
			continue
		}
		for o := range width {
			if amount := p.request.At(o); amount > 0 {
				// Without any of the resource, the ratio is infinite.
				l.ratios[o*width+dim] = max(l.ratios[o*width+dim], float64(amount)/float64(p.request.At(dim)))
			}
		}
	}
}

// bound returns the most that can leave of a resource.
func (l *loan) bound(dim int) int64 {
	most, stated := 0.0, false
	for o, largest := range l.largest {
		deserved, ok := at(l.queue.deserved, o)
		stated = stated || ok
		if above := l.queue.used.At(o) - deserved + largest; ok && largest > 0 && above > 0 {
			most = max(most, l.ratios[dim*len(l.largest)+o]*float64(above))
		}
	}
	if !stated || most > math.MaxInt64/2 {
		return math.MaxInt64 / 2
	}
	return int64(most*(1+1e-9)) + 1
}

// eachAllowed calls do for the pods that may be evicted.
func (f *Search) eachAllowed(do func(*pod, *gang)) {
	for _, i := range f.candidates {
		g := &f.gangs[i]
		for _, id := range g.pods {
			if f.may[id] {
				do(&f.nodes.pods[id], g)
			}
		}
	}
}

// placesOf returns how many pods of a class would fit if all pods left that may be evicted. Host
// ports count as if they stayed in use by nobody.
func (f *Search) placesOf(r *rights, c *place.Class) *places {
	p := r.places[c.Key()]
	if p == nil {
		p = &places{}
		p.fit, p.total = f.nodes.tally(f.nodes.compile(withoutPorts(c)), r.used)
		r.places[c.Key()] = p
	}
	return p
}

func withoutPorts(c *place.Class) *place.Class {
	if len(c.Ports) == 0 {
		return c
	}
	free := *c
	free.Ports = nil
	return &free
}

// impossible returns why the claimant would not fit if all pods left that may be evicted, or nil.
func (f *Search) impossible(r *rights) *Refusal {
	c := f.claim
	// 1. Would its queues stay within their capabilities?
	for _, l := range c.limits {
		if l.lack > r.gives[int(l.queue)*f.nodes.width+l.dim] {
			return &Refusal{Code: NotEnough, Queue: f.queues.list[l.queue].name}
		}
	}
	// 2. Are there as many places as it needs at least?
	for _, class := range f.nodes.classes {
		p, total := f.placesOf(r, class.class), int64(0)
		if total = p.total; f.nodes.within != nil {
			total = 0
			for i, ok := range f.nodes.within {
				if ok {
					total += int64(p.fit[i])
				}
			}
		}
		if total < class.wanted {
			return &Refusal{Code: NotEnough, Fit: total, Wanted: class.wanted}
		}
	}
	if anywhere(c.Near) && !f.someDomain(r) {
		return &Refusal{Code: NotEnough}
	}
	// 3. May as much leave, within the limits of queues?
	for dim, amount := range c.least {
		if dim < len(r.most) && amount > r.most[dim] {
			return &Refusal{Code: NotFound}
		}
	}
	if c.countable && len(f.nodes.classes[0].class.Ports) == 0 {
		return nil
	}
	// 4. Does package place find them?
	d := f.placerOf(r).Place(c.gang)
	if d.Shortage != nil {
		return &Refusal{Code: NotEnough, Fit: int64(d.Shortage.Fit), Wanted: int64(d.Shortage.Wanted)}
	}
	r.placer.Undo(c.gang, d)
	return nil
}

// someDomain reports whether there would be enough places in one of the domains that the claimant
// may be in, if all pods left that may be evicted.
func (f *Search) someDomain(r *rights) bool {
	return slices.ContainsFunc(f.nodes.placer.Domains(f.claim.Near), func(d place.Domain) bool {
		return f.missing(&d, r) <= 0
	})
}

// placerOf returns a placer on the nodes without the pods that may be evicted.
func (f *Search) placerOf(r *rights) *place.Placer {
	if r.placer != nil {
		return r.placer
	}
	f.grant(r)
	o := f.nodes
	nonZero, ports := make([][2]int64, len(o.list)), make([]place.PortSet, len(o.list))
	for i := range o.list {
		nonZero[i], ports[i] = o.list[i].nonZero, o.list[i].ports
	}
	f.eachAllowed(func(p *pod, _ *gang) {
		nonZero[p.node][0] -= p.NonZero.At(place.CPU)
		nonZero[p.node][1] -= p.NonZero.At(place.Memory)
		if len(p.Ports) > 0 {
			ports[p.node] = maps.Clone(ports[p.node])
		}
		for _, port := range p.Ports {
			if ports[p.node][port]--; ports[p.node][port] == 0 {
				delete(ports[p.node], port)
			}
		}
	})
	s := place.NewSnapshot(f.state.Nodes.Dims())
	for i := range o.list {
		n := o.list[i].Node
		n.Used, n.UsedNonZero, n.Ports = r.used[i*o.width:][:o.width], nonZero[i][:], ports[i]
		s.Set(n)
	}
	r.placer = place.NewPlacer(s, f.state.Place)
	return r.placer
}
