package evict

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Search finds victims in one State. It is not safe for concurrent use, and valid only as long as
// the State is not modified.
type Search struct {
	state  *State
	queues *queues
	gangs  []gang // sorted by key
	nodes  *occupancy
	total  place.Vector // allocatable amounts of all nodes

	budgets []int // how many more pods may be evicted, by budget

	claim   *claim
	victims victims
	// What pods may be evicted, for claims with the same rights: allowed, which are among the rights
	// that are known.
	rights     map[rightsKey]*rights
	allowed    *rights
	may        []bool  // by pod: as surplus or with its gang
	candidates []int32 // gangs with such pods
	rank       []int32 // by gang: the place among the candidates, cheapest first
	priorities []int32 // of all gangs and pods, ascending

	// earlier is memory for the pods of the next search.
	earlier []pod

	exactPods int // the constant; tests change it
}

// gang is a gang that may lose pods.
type gang struct {
	*Gang
	queue int32
	// The gang's pods are those from first up to end in occupancy.pods; pods are those that are not leaving,
	// by node.
	first, end int32
	pods       []int32
	tasks      []task
	sum        place.Vector
	priority   int32 // the highest of the gang's and its pods'
	often      bool  // has been evicted as often as it may be
	age        int64
	work       int64

	// For the claim:
	relation
	whole bool // may lose all pods
	spare int  // how many pods it may lose without falling below its minimum
	level int  // index of its priority in victims.levels

	// Chosen so far:
	gone bool // all pods
	lost int  // single pods
}

// task is the pods of a gang that have one task.
type task struct {
	pods  int
	min   int
	spare int // may be lost for the claim
	lost  int // chosen so far
}

// claim is a Claim being decided.
type claim struct {
	Claim
	gang   place.Gang // what is placed: the demands without pods that the minimum cannot need
	queue  int32
	least  place.Vector // what the minimum takes in any case
	most   place.Vector // and at most
	single bool         // whether it fits can be told by counting
	// domains are the domains that the claimant may be in, if it must be in one; countable means that
	// counting tells whether it fits into one.
	domains   []place.Domain
	countable bool
	class     []int // by demand: index in nodes.classes
	limits    []limit
}

// limit is a capability that the claimant would exceed.
type limit struct {
	queue int32
	dim   int
	lack  int64 // how much victims have to give back
}

// New prepares a search. It costs O(pods + nodes).
func New(s *State) *Search { return newSearch(s, nil) }

// Renew is New, faster if the states of both searches are alike. f, which may be nil, must not be used
// afterwards.
func (f *Search) Renew(s *State) *Search { return newSearch(s, f) }

func newSearch(s *State, before *Search) *Search {
	f := &Search{state: s, queues: newQueues(s), nodes: newOccupancy(s), exactPods: exactPods,
		rights: map[rightsKey]*rights{}}
	at := make(map[string]int32, len(f.nodes.list))
	f.total = make(place.Vector, f.nodes.width)
	for i := range f.nodes.list {
		at[f.nodes.list[i].Name] = int32(i)
		for dim, amount := range f.nodes.list[i].Allocatable {
			f.total[dim] += amount
		}
	}
	order := make([]*Gang, 0, len(s.Gangs))
	pods := 0
	for i := range s.Gangs {
		order = append(order, &s.Gangs[i])
		pods += len(s.Gangs[i].Pods)
	}
	slices.SortFunc(order, func(a, b *Gang) int { return cmp.Compare(a.Key, b.Key) })
	f.gangs = make([]gang, len(order))
	x := enlisting{at: at, ids: make([]int32, 0, pods)}
	if before != nil {
		before.recycle()
		f.nodes.spare, f.earlier = before.nodes.spare, before.nodes.pods
		f.nodes.pods, before.earlier = before.earlier[:0], nil
		if f.nodes.same(before.nodes) {
			x.before = before
		}
	}
	f.nodes.pods = slices.Grow(f.nodes.pods, pods)
	for i, src := range order {
		f.addGang(int32(i), src, &x)
	}
	f.addToNodes()
	f.may, f.rank = make([]bool, len(f.nodes.pods)), make([]int32, len(f.gangs))
	for i := range f.gangs {
		f.priorities = append(f.priorities, f.gangs[i].Priority)
		for _, id := range f.gangs[i].pods {
			if p := &f.nodes.pods[id]; p.Priority != f.gangs[i].Priority {
				f.priorities = append(f.priorities, p.Priority)
			}
		}
	}
	slices.Sort(f.priorities)
	f.priorities = slices.Compact(f.priorities)
	for _, b := range s.Budgets {
		f.budgets = append(f.budgets, max(0, b.Allowed))
	}
	return f
}

// addToNodes adds the pods to their nodes, and lifts those that are leaving.
func (f *Search) addToNodes() {
	on := make([]int32, len(f.nodes.list))
	for i := range f.nodes.pods {
		on[f.nodes.pods[i].node]++
	}
	ids := make([]int32, len(f.nodes.pods))
	for i, n := range on {
		f.nodes.list[i].pods, ids = ids[:0:n], ids[n:]
	}
	gone := make([]place.Vector, len(f.queues.list)) // what leaves each queue
	for i := range f.nodes.pods {
		p := &f.nodes.pods[i]
		n := &f.nodes.list[p.node]
		n.pods = append(n.pods, int32(i))
		if p.Leaving {
			f.nodes.lift(p)
			add(&gone[f.gangs[p.gang].queue], p.Request)
		}
	}
	for q, amount := range gone {
		if amount != nil {
			f.use(int32(q), amount, -1)
		}
	}
}

// add adds an amount to a vector that belongs to the caller.
func add(v *place.Vector, amount place.Vector) {
	if len(*v) < len(amount) {
		*v = v.Plus(amount, 1)
		return
	}
	for dim, a := range amount {
		(*v)[dim] += a
	}
}

// enlisting is what addGang needs for each gang.
type enlisting struct {
	at    map[string]int32 // nodes by name
	ids   []int32          // for the lists of gangs, with room for all pods
	order []located
	// before is an earlier search with the same nodes, or nil, and next the first of its gangs that was
	// not compared yet.
	before *Search
	next   int
}

// known returns the pods of a gang as the earlier search has them, in order, if they are the same.
func (x *enlisting) known(src *Gang) []pod {
	if x.before == nil || len(src.Pods) == 0 {
		return nil
	}
	gangs := x.before.gangs
	for x.next < len(gangs) && gangs[x.next].Key < src.Key {
		x.next++
	}
	if x.next == len(gangs) {
		return nil
	}
	g := &gangs[x.next]
	if g.Key != src.Key || len(g.Pods) != len(src.Pods) || &g.Pods[0] != &src.Pods[0] {
		return nil
	}
	return x.before.nodes.pods[g.first:g.end]
}

// located is a pod on a node of the search.
type located struct {
	*Pod
	node int32
}

// locate sets order to the pods of a gang that have nodes, by node and name.
func (x *enlisting) locate(src *Gang) {
	x.order = x.order[:0]
	if known := x.known(src); known != nil {
		for i := range known {
			x.order = append(x.order, located{known[i].Pod, known[i].node})
		}
		return
	}
	for k := range src.Pods {
		if n, ok := x.at[src.Pods[k].Node]; ok {
			x.order = append(x.order, located{&src.Pods[k], n})
		}
	}
	// Nodes are numbered by name. Mostly, the pods are in order.
	byNode := func(a, b located) int {
		if a.node != b.node {
			return cmp.Compare(a.node, b.node)
		}
		return cmp.Or(strings.Compare(a.Name.Namespace, b.Name.Namespace), strings.Compare(a.Name.Name, b.Name.Name))
	}
	if !slices.IsSortedFunc(x.order, byNode) {
		slices.SortFunc(x.order, byNode)
	}
}

// addGang adds a gang and its pods.
func (f *Search) addGang(i int32, src *Gang, x *enlisting) {
	g := &f.gangs[i]
	*g = gang{Gang: src, queue: f.queues.of(src.Queue), priority: src.Priority}
	g.often = f.often(src.Evicted)
	names := map[string]int32{}
	if len(src.Min) > 0 {
		for _, p := range src.Pods {
			names[p.Task] = 0
		}
		for task := range src.Min {
			names[task] = 0
		}
		sorted := make([]string, 0, len(names))
		for task := range names {
			sorted = append(sorted, task)
		}
		slices.Sort(sorted)
		for k, task := range sorted {
			names[task] = int32(k)
		}
	}
	g.tasks = make([]task, max(1, len(names)))
	for task, least := range src.Min {
		g.tasks[names[task]].min = least
	}
	x.locate(src)
	g.first = int32(len(f.nodes.pods))
	g.end = g.first + int32(len(x.order))
	g.pods = x.ids[len(x.ids):len(x.ids):min(cap(x.ids), len(x.ids)+len(x.order))]
	x.ids = x.ids[:len(x.ids)+len(x.order)]
	for _, p := range x.order {
		id := int32(len(f.nodes.pods))
		age := max(0, int64(f.state.Now.Sub(p.Started)))
		f.nodes.pods = append(f.nodes.pods, pod{Pod: p.Pod, request: p.Request, gang: i, node: p.node, task: names[p.Task],
			age: age / int64(time.Second), work: int64(float64(age) * f.portion(p.Request))})
		if p.Leaving {
			continue
		}
		g.pods = append(g.pods, id)
		g.tasks[names[p.Task]].pods++
		add(&g.sum, p.Request)
		g.priority = max(g.priority, p.Priority)
		g.age += f.nodes.pods[id].age
		g.work += f.nodes.pods[id].work
	}
}

// portion returns the largest fraction of any of the cluster's resources that a request takes.
func (f *Search) portion(request place.Vector) float64 {
	most := 0.0
	for dim, amount := range request {
		if total := f.total.At(dim); total > 0 {
			most = max(most, float64(amount)/float64(total))
		}
	}
	return most
}

// often reports whether the times within the window are as many as may be.
func (f *Search) often(times []time.Time) bool {
	return f.state.Rules.EvictionsMax > 0 && f.state.recent(times) >= f.state.Rules.EvictionsMax
}

// Find decides which pods have to leave for a claim.
func (f *Search) Find(c Claim) *Plan {
	if c.Near != nil && c.Near.Hard {
		return f.findNear(c)
	}
	return f.find(c, nil)
}

// find is Find for a claimant that may be on any node or, if within is not nil, on the nodes that
// within has.
func (f *Search) find(c Claim, within []bool) *Plan {
	f.nodes.within = within
	defer f.end()
	p, open := f.prepare(c)
	if !open {
		return p
	}
	// 3. Choose victims, and exchange them for cheaper ones.
	found, exact := f.choose()
	if !found {
		p.Refusal = &Refusal{Code: NotFound}
		return p
	}
	// 4. Place the claimant without them.
	p.Exact, p.chosen = exact, slices.Clone(f.victims.list)
	f.report(p, f.nodes.place(f.claim.gang))
	return p
}

// prepare begins the search for a claim. open is false if the plan is final: nobody has to leave, or
// nobody may.
func (f *Search) prepare(c Claim) (p *Plan, open bool) {
	p = &Plan{Claim: c.Key, Exempt: map[string]int{}}
	f.begin(c)
	p.claim, p.placed = f.claim, f.claim.gang

	// 1. Does the claimant fit already, or when the pods that are leaving are gone?
	if d, ok := f.fitsNow(); ok {
		p.Exact = true
		f.report(p, d)
		return p, false
	}
	// 2. May it evict anybody?
	r := f.rightsOf()
	p.Gangs, p.Pods, p.Exempt = r.gangs, r.pods, maps.Clone(r.exempt)
	switch {
	case c.Never:
		p.Refusal = &Refusal{Code: NeverEvicts}
	case f.often(c.Evicted):
		p.Refusal = &Refusal{Code: EvictsOften}
	case p.Pods == 0:
		p.Refusal = &Refusal{Code: NoVictims}
	default:
		p.Refusal = f.impossible(r)
	}
	if p.Refusal != nil {
		return p, false
	}
	f.grant(r)
	return p, true
}

// begin prepares the search for a claim.
func (f *Search) begin(c Claim) {
	k := &claim{Claim: c, queue: f.queues.of(c.Queue)}
	f.claim = k
	sum, count := 0, 0
	for _, d := range c.Demands {
		sum += d.Min
		count += d.Count
	}
	// extra is how many pods the minimum needs beyond the minimums of the demands.
	extra := max(0, c.MinMember-sum)
	k.gang = c.Gang
	k.gang.Demands = slices.Clone(c.Demands)
	byKey := map[string]int{}
	var classes []*place.Class
	var wanted []int64
	for i := range k.gang.Demands {
		d := &k.gang.Demands[i]
		d.Count = d.Min + min(d.Count-d.Min, extra)
		at, ok := byKey[d.Class.Key()]
		if !ok {
			at = len(classes)
			byKey[d.Class.Key()] = at
			classes, wanted = append(classes, d.Class), append(wanted, 0)
		}
		k.class = append(k.class, at)
		wanted[at] += int64(d.Min)
	}
	k.countable = len(classes) == 1 && len(c.Parts) == 0 && count >= c.MinMember &&
		!classes[0].Rare && classes[0].Pins == nil
	k.single = k.countable && !anywhere(c.Near)
	k.bound(min(extra, count-sum))
	f.nodes.count(classes, k.least)
	for i, n := range wanted {
		f.nodes.classes[i].wanted = n
	}
	want(f.nodes.classes, int64(extra))
	for _, q := range f.queues.list[k.queue].path {
		for dim, amount := range k.most {
			capability, ok := at(f.queues.list[q].capability, dim)
			if lack := f.queues.list[q].used.At(dim) + amount - capability; ok && amount > 0 && lack > 0 {
				k.limits = append(k.limits, limit{queue: q, dim: dim, lack: lack})
			}
		}
	}
}

// want sets how many places of each class the claimant needs at least. A pod takes a place of every
// class that requests no more than the pod's own class and may go to the same nodes.
func want(classes []*fits, extra int64) {
	wanted := make([]int64, len(classes))
	for k := range classes {
		all := true
		for a := range classes {
			if a == k || dominates(classes[a], classes[k]) {
				wanted[k] += classes[a].wanted
			} else {
				all = false
			}
		}
		if all {
			wanted[k] += extra
		}
	}
	for k := range classes {
		classes[k].wanted = wanted[k]
	}
}

// dominates reports whether every pod of class a takes a place of class b.
func dominates(a, b *fits) bool {
	for dim, amount := range b.class.Request {
		if a.class.Request.At(dim) < amount {
			return false
		}
	}
	for i, ok := range a.eligible {
		if ok && !b.eligible[i] {
			return false
		}
	}
	return len(b.class.Ports) == 0
}

// bound computes the least and the most that the minimum takes. They differ if it can be met with
// pods of several demands: extra is the number of pods for which that is open.
func (k *claim) bound(extra int) {
	var least, most place.Vector // of one of these pods
	for _, d := range k.gang.Demands {
		k.most = k.most.Plus(d.Class.Request, int64(d.Min))
		if d.Count == d.Min {
			continue
		}
		if most == nil {
			least, most = d.Class.Request.Plus(nil, 0), d.Class.Request.Plus(nil, 0)
			continue
		}
		for dim, amount := range d.Class.Request.Plus(most, 0) { // at least as long as most
			for len(most) <= dim {
				least, most = append(least, 0), append(most, 0)
			}
			least[dim], most[dim] = min(least[dim], amount), max(most[dim], amount)
		}
	}
	k.least = k.most.Plus(least, int64(extra))
	k.most = k.most.Plus(most, int64(extra))
}

// end forgets the claim.
func (f *Search) end() {
	f.putAllBack()
	f.nodes.classes, f.nodes.free, f.nodes.within = nil, nil, nil
	f.claim = nil
	if f.nodes.full(len(f.nodes.counted), 4) {
		f.nodes.recycle()
	}
	for _, r := range f.rights {
		if f.nodes.full(len(r.places), 4) {
			f.nodes.recyclePlaces(r)
		}
	}
}

// recycle makes memory of what was counted for earlier claims free for later ones.
func (f *Search) recycle() {
	f.nodes.recycle()
	for _, r := range f.rights {
		f.nodes.recyclePlaces(r)
	}
}

// fitsNow reports whether the claimant fits without victims.
func (f *Search) fitsNow() (place.Decision, bool) {
	if len(f.claim.limits) > 0 || !f.nodes.enough() {
		return place.Decision{}, false
	}
	d := f.nodes.place(f.claim.gang)
	return d, d.Shortage == nil
}

// feasible reports whether the claimant fits without the pods that are lifted.
func (f *Search) feasible() bool {
	for i := range f.claim.limits {
		if f.claim.limits[i].lack > 0 {
			return false
		}
	}
	near := len(f.claim.domains) > 0
	switch {
	case !f.nodes.enough():
		return false
	case near && f.claim.countable:
		return f.inOneDomain()
	case near && !f.inOneDomain():
		return false
	}
	return f.claim.single || f.nodes.place(f.claim.gang).Shortage == nil
}

// lift takes a pod from its node.
func (f *Search) lift(id int32) {
	if p := &f.nodes.pods[id]; !p.lifted {
		f.nodes.lift(p)
		f.giveBack(p, 1)
	}
}

func (f *Search) putBack(id int32) {
	if p := &f.nodes.pods[id]; p.lifted {
		f.nodes.putBack(p)
		f.giveBack(p, -1)
	}
}

// giveBack counts what a pod gives back to the limits of the claimant's queues.
func (f *Search) giveBack(p *pod, times int64) {
	for i := range f.claim.limits {
		l := &f.claim.limits[i]
		if slices.Contains(f.queues.list[f.gangs[p.gang].queue].path, l.queue) {
			l.lack -= times * p.Request.At(l.dim)
		}
	}
}

// putAllBack puts the victims back.
func (f *Search) putAllBack() {
	for len(f.victims.list) > 0 {
		f.drop(f.victims.list[len(f.victims.list)-1])
	}
}

// report fills in a plan from the victims chosen and the placement.
func (f *Search) report(p *Plan, d place.Decision) {
	c := f.claim
	if d.Shortage != nil { // the placement of several classes is greedy; see choose
		p.Refusal = &Refusal{Code: NotFound}
		return
	}
	p.Nodes = make([][]string, len(d.Placed))
	on := map[int32]bool{}
	missing := c.MinMember
	counts := make([]int, len(d.Placed))
	for i, dem := range c.gang.Demands {
		counts[i] = dem.Min
		missing -= dem.Min
	}
	for _, i := range f.smallFirst() {
		n := max(0, min(missing, len(d.Placed[i])-counts[i]))
		counts[i] += n
		missing -= n
	}
	for i, nodes := range d.Placed {
		p.Nodes[i] = make([]string, 0, counts[i])
		for _, index := range nodes[:counts[i]] {
			n := f.nodes.nodeOf[index]
			on[n] = true
			p.Nodes[i] = append(p.Nodes[i], f.nodes.list[n].Name)
		}
	}
	for n := range on {
		for _, id := range f.nodes.list[n].pods {
			if f.nodes.pods[id].Leaving {
				p.Leaving++
			}
		}
	}
	f.reportVictims(p)
}

// smallFirst returns the demands, those with the smallest pods first.
func (f *Search) smallFirst() []int {
	demands := f.claim.gang.Demands
	order := make([]int, len(demands))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(f.portion(demands[a].Class.Request), f.portion(demands[b].Class.Request))
	})
	return order
}

func (f *Search) reportVictims(p *Plan) {
	p.Cost = f.victims.price().cost(f.victims.levels)
	of := map[int32][]int32{}
	for _, v := range f.victims.list {
		f.each(v, func(id int32) {
			g := f.nodes.pods[id].gang
			of[g] = append(of[g], id)
		})
	}
	for i, ids := range of {
		g := &f.gangs[i]
		p.removed = append(p.removed, ids...)
		v := Victim{Gang: g.Key, Queue: g.Queue, Priority: g.Priority, Rule: g.rule, Whole: g.gone}
		for _, id := range ids {
			v.Pods = append(v.Pods, f.nodes.pods[id].Name)
			v.Work += time.Duration(f.nodes.pods[id].work)
		}
		slices.SortFunc(v.Pods, func(a, b types.NamespacedName) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		p.Victims = append(p.Victims, v)
	}
	slices.SortFunc(p.Victims, func(a, b Victim) int { return cmp.Compare(a.Gang, b.Gang) })
}

// Accept makes a plan part of the state of the search: its victims are gone, and the claimant has
// its nodes. No other plan may have been accepted since the plan was found.
func (f *Search) Accept(p *Plan) {
	if p.Refusal != nil {
		return
	}
	f.forbid()
	f.recycle()
	clear(f.rights)
	for _, id := range p.removed {
		pod := &f.nodes.pods[id]
		g := &f.gangs[pod.gang]
		f.nodes.lift(pod)
		for _, b := range pod.Budgets {
			f.budgets[b] = max(0, f.budgets[b]-1)
		}
		f.use(g.queue, pod.Request, -1)
		g.pods = slices.DeleteFunc(g.pods, func(o int32) bool { return o == id })
		g.sum = g.sum.Plus(pod.Request, -1)
		g.tasks[pod.task].pods--
		g.age, g.work = g.age-pod.age, g.work-pod.work
		g.priority = g.Priority
		for _, o := range g.pods {
			g.priority = max(g.priority, f.nodes.pods[o].Priority)
		}
	}
	f.nodes.sync()
	for _, id := range p.removed {
		n := &f.nodes.list[f.nodes.pods[id].node]
		n.pods = slices.DeleteFunc(n.pods, func(o int32) bool { return o == id })
	}
	var need place.Vector
	for i, nodes := range p.Nodes {
		class := p.placed.Demands[i].Class
		need = need.Plus(class.Request, int64(len(nodes)))
		for _, name := range nodes {
			n, _ := f.nodes.trial.Index(name)
			f.nodes.take(class, f.nodes.nodeOf[n])
		}
	}
	f.use(p.claim.queue, need, 1)
}

// use adds to what a queue and those above it have.
func (f *Search) use(q int32, amount place.Vector, times int64) {
	for _, i := range f.queues.list[q].path {
		f.queues.list[i].used = f.queues.list[i].used.Plus(amount, times)
	}
}
