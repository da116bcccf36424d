package share

import (
	"cmp"
	"container/heap"
	"slices"
	"sort"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// depthMax bounds the depth of the queue tree: 16 queues, and a part of the last one. A queue with
// more ancestors, or that is its own ancestor, counts as not found.
const depthMax = 17

// Ledger keeps the amounts that queues hold and the gangs that wait. A call costs O(queues) at
// most, plus the heap operations on one queue's gangs. A Ledger is not safe for concurrent use.
type Ledger struct {
	dims   *place.Dims
	total  place.Vector
	queues map[string]*queue // known queues, and queues that gangs or charges name
	gangs  map[string]*item

	linked  bool     // children, parents and sums match the queues as set
	touched []*queue // queues whose demand may have changed since the last division
	divided bool
	scratch []*queue

	history
}

// queue is a node of the tree. Sums include the queues below.
type queue struct {
	Queue
	known    bool
	parent   *queue // nil for the root, and for queues outside the tree
	attached bool
	children []*queue

	own     amounts // amounts of the queue alone
	sum     amounts
	divided place.Vector // demand at the last division

	deserved place.Vector
	first    int64 // during the division of a resource: what the queue gets of it before the remainder
	share    float64
	past     past
	standing
	ready  Heap[*item] // gangs that may be offered, next first
	parked Heap[*item]
	offers int // number of queues, in this subtree, with a gang to offer
}

// amounts are the amounts held by pods, the amounts that waiting gangs ask for, those that pods which
// do not exist yet have been promised, and the number of jobs that have pods on nodes.
type amounts struct {
	held, pending, promised place.Vector
	jobs                    int64
}

// item is a gang in one of the two heaps of its queue.
type item struct {
	Gang
	queue *queue
	in    *Heap[*item]
	at    int
}

// Before implements Element.
func (i *item) Before(o *item) bool { return i.Gang.Before(&o.Gang) }

// Position implements Element.
func (i *item) Position() *int { return &i.at }

// New returns a ledger for a cluster that can allocate total.
func New(dims *place.Dims, total place.Vector, queues ...Queue) *Ledger {
	l := &Ledger{dims: dims, total: slices.Clone(total), queues: map[string]*queue{}, gangs: map[string]*item{}}
	for _, q := range queues {
		l.SetQueue(q)
	}
	return l
}

// SetTotal sets the amounts that the cluster can allocate.
func (l *Ledger) SetTotal(total place.Vector) {
	if !slices.Equal(l.total, total) {
		l.total = slices.Clone(total)
		l.divided = false
	}
}

// SetQueue adds or changes a queue.
func (l *Ledger) SetQueue(q Queue) {
	n := l.queue(q.Name)
	q.Weight = max(q.Weight, 1)
	if q.Name == Root {
		q.Parent = ""
	} else if q.Parent == "" {
		q.Parent = Root
	}
	if n.known && n.same(&q) {
		return
	}
	n.Queue, n.known = q, true
	n.Capability, n.Deserved = slices.Clone(q.Capability), slices.Clone(q.Deserved)
	l.linked = false
}

func (q *queue) same(o *Queue) bool {
	return q.Parent == o.Parent && q.Weight == o.Weight && q.Priority == o.Priority && q.Closed == o.Closed &&
		q.FIFO == o.FIFO && q.JobsLimited == o.JobsLimited && q.JobsMax == o.JobsMax && q.Of == o.Of &&
		slices.Equal(q.Capability, o.Capability) && slices.Equal(q.Deserved, o.Deserved)
}

// RemoveQueue forgets a queue. Its gangs wait until the queue is set again; the amounts it holds
// stay charged to it.
func (l *Ledger) RemoveQueue(name string) {
	if n := l.queues[name]; n != nil {
		l.bequeath(n)
		n.Queue, n.known = Queue{Name: name, Weight: 1}, false
		l.linked = false
	}
}

// Submit adds a waiting gang, or replaces the gang with the same key. The gang is ready at once.
func (l *Ledger) Submit(g Gang) {
	l.Remove(g.Key)
	q := l.queue(g.Queue)
	it := &item{Gang: g, queue: q}
	l.gangs[g.Key] = it
	l.add(q, amounts{pending: g.Request}, 1)
	l.move(it, &q.ready)
}

// Remove forgets a gang that no longer waits.
func (l *Ledger) Remove(key string) {
	it := l.gangs[key]
	if it == nil {
		return
	}
	delete(l.gangs, key)
	l.add(it.queue, amounts{pending: it.Request}, -1)
	l.move(it, nil)
}

// Park keeps a gang but does not offer it until Wake, because it does not fit at present. The gang
// still counts as demand, and in a FIFO queue the gangs behind it wait too.
func (l *Ledger) Park(key string) {
	if it := l.gangs[key]; it != nil {
		l.move(it, &it.queue.parked)
	}
}

// Wake makes a parked gang ready.
func (l *Ledger) Wake(key string) {
	if it := l.gangs[key]; it != nil {
		l.move(it, &it.queue.ready)
	}
}

// Charge adds amount, which may be negative, to what a queue holds: pods of the queue have been
// placed, were found on nodes, or have ended.
func (l *Ledger) Charge(queue string, amount place.Vector) {
	q := l.queue(queue)
	l.advance(q)
	l.add(q, amounts{held: amount}, 1)
}

// ChargeJobs adds n, which may be negative, to the number of jobs of a queue that have pods on nodes.
func (l *Ledger) ChargeJobs(queue string, n int64) {
	l.add(l.queue(queue), amounts{jobs: n}, 1)
}

// Promise adds amount, which may be negative, to what a queue has promised to pods that do not exist
// yet. It counts in AdmitPromised only.
func (l *Ledger) Promise(queue string, amount place.Vector) {
	l.add(l.queue(queue), amounts{promised: amount}, 1)
}

// AdmitPromised returns a Refusal if the queue, or one above it, would exceed its limit with more
// beside what it holds and has promised.
func (l *Ledger) AdmitPromised(queue string, more place.Vector) *Refusal {
	l.settle()
	q := l.queues[queue]
	if q == nil {
		return &Refusal{Code: QueueNotFound, Queue: queue}
	}
	return l.over(q, more, true)
}

// Exceeds reports whether an amount is above a limit of the queue, or of one above it, even if they
// held nothing.
func (l *Ledger) Exceeds(queue string, amount place.Vector) bool {
	l.settle()
	for q := l.queues[queue]; q != nil; q = q.parent {
		for dim, a := range amount {
			if limit := q.Capability.at(dim); a > 0 && limit != Unlimited && a > limit {
				return true
			}
		}
	}
	return false
}

// Next returns the gang whose turn it is. The answer stays the same until the gang is Parked
// or Removed, or something else changes. Gangs with Resume come first. Queues are ordered by: below
// their share before above (with SetHalfLife: below what they state that they deserve before above),
// minimums before surplus, higher priority, smaller share (with SetHalfLife: smaller usage), name.
// Parts of a queue are ordered by their first gangs' surplus and priority, by smaller share or usage,
// and by their first gangs' age. Gangs inside a queue or a part are ordered by: minimums before surplus,
// higher priority, age (oldest first), key.
func (l *Ledger) Next() (Gang, bool) {
	l.settle()
	q := l.queues[Root]
	if q.offers == 0 {
		return Gang{}, false
	}
	for len(q.children) > 0 {
		var best *queue
		for _, c := range q.children {
			if c.offers > 0 && (best == nil || c.before(best)) {
				best = c
			}
		}
		q = best
	}
	return q.ready[0].Gang, true
}

// slack is the part of its deserved amounts by which a turn may lift a queue above the share of the
// next one. Without it, pods of large queues would be placed one by one.
const slack = 0.01

// Turn returns how many pods of a request a queue may be given before it is another queue's turn:
// 1 to most. It is meant for pods above the minimums of gangs; a minimum is placed whole.
func (l *Ledger) Turn(name string, request place.Vector, most int) int {
	l.settle()
	for q := l.queues[name]; q != nil && q.parent != nil && most > 1; q = q.parent {
		var next *queue
		for _, c := range q.parent.children {
			if c != q && c.offers > 0 && (next == nil || c.before(next)) {
				next = c
			}
		}
		if next == nil {
			continue
		}
		after := *q
		most = 1 + sort.Search(most-1, func(i int) bool {
			after.standing = l.standingWith(q, request, int64(i+1), slack)
			return !after.before(next)
		})
	}
	return most
}

// Deserved returns what a queue gets of each resource when the cluster is divided by weight and demand, or
// nil if the queue has no part in that.
func (l *Ledger) Deserved(name string) place.Vector {
	l.settle()
	if q := l.queues[name]; q != nil && q.attached {
		return slices.Clone(q.deserved)
	}
	return nil
}

// Owes reports whether a queue holds less than it deserves of all that a request has.
func (l *Ledger) Owes(name string, request place.Vector) bool {
	l.settle()
	q, owed := l.queues[name], false
	if q == nil || !q.attached {
		return false
	}
	for dim, amount := range request {
		if amount <= 0 {
			continue
		}
		if owed = q.sum.held.At(dim) < q.deserved.At(dim); !owed {
			return false
		}
	}
	return owed
}

// before orders siblings that have a gang to offer.
func (q *queue) before(o *queue) bool {
	if a, b := q.offersAny(resumes), o.offersAny(resumes); a != b {
		return a
	}
	parts := q.Of != "" && o.Of != ""
	if a, b := q.served, o.served; a != b && !parts {
		return b
	}
	if a, b := q.offersAny(minimum), o.offersAny(minimum); a != b {
		return a
	}
	if parts {
		a, b := &q.ready[0].Gang, &o.ready[0].Gang
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(q.rank, o.rank), a.Created.Compare(b.Created),
			cmp.Compare(q.Name, o.Name)) < 0
	}
	return cmp.Or(cmp.Compare(o.Priority, q.Priority), cmp.Compare(q.rank, o.rank), cmp.Compare(q.Name, o.Name)) < 0
}

// hasQueues reports whether there are queues below, which are not parts of this one.
func (q *queue) hasQueues() bool {
	return slices.ContainsFunc(q.children, func(c *queue) bool { return c.Of == "" })
}

// shown returns the name of the queue for users: that of the queue that this is a part of.
func (q *queue) shown() string { return cmp.Or(q.Of, q.Name) }

// offersAny reports whether this queue, or a queue below, offers a gang for which is returns true.
func (q *queue) offersAny(is func(*Gang) bool) bool {
	if q.offers == 0 {
		return false
	}
	if len(q.children) == 0 {
		return is(&q.ready[0].Gang)
	}
	return slices.ContainsFunc(q.children, func(c *queue) bool { return c.offersAny(is) })
}

func resumes(g *Gang) bool { return g.Resume }
func minimum(g *Gang) bool { return !g.Surplus }

// offering reports whether the queue itself has a gang to offer.
func (q *queue) offering() bool {
	switch {
	case len(q.ready) == 0 || !q.known || !q.attached || len(q.children) > 0 || q.Of != "" && q.parent.hasQueues():
		return false
	case q.Closed && !q.ready[0].Resume:
		return false
	}
	return !q.FIFO || len(q.parked) == 0 || q.ready[0].Before(q.parked[0])
}

// Blocked returns the reason why a queue starts no gang at all, or nil.
func (l *Ledger) Blocked(name string) *Refusal {
	l.settle()
	q := l.queues[name]
	switch {
	case q == nil || !q.known:
		return &Refusal{Code: QueueNotFound, Queue: name}
	case !q.attached:
		if of := l.queues[q.Of]; q.Of != "" && of != nil {
			q = of
		}
		return &Refusal{Code: QueueNotFound, Queue: q.shown(), Missing: l.missingAbove(q)}
	case q.hasQueues() || q.Of != "" && q.parent.hasQueues():
		return &Refusal{Code: QueueNotLeaf, Queue: q.shown()}
	case q.Closed:
		return &Refusal{Code: QueueClosed, Queue: q.shown()}
	}
	return nil
}

// Behind returns the reason why a gang of a FIFO queue is not offered although it is not parked: one that
// sorts before it is. It returns nil for other gangs.
func (l *Ledger) Behind(key string) *Refusal {
	l.settle()
	it := l.gangs[key]
	if it == nil || it.in != &it.queue.ready {
		return nil
	}
	q := it.queue
	if !q.FIFO || len(q.parked) == 0 || q.offering() || l.Blocked(q.Name) != nil {
		return nil
	}
	return &Refusal{Code: BehindFirst, Queue: q.shown()}
}

// Admit cuts a gang down to the amounts that its queue, and the queues above, may still hold: pods
// above the gang's minimum are left out as far as necessary. If the minimum itself is too much,
// Admit returns a Refusal. startsJob means that the gang is a job that has no pods on nodes yet.
func (l *Ledger) Admit(g place.Gang, startsJob bool) (place.Gang, *Refusal) {
	l.settle()
	q := l.queues[g.Queue]
	if q == nil {
		return g, &Refusal{Code: QueueNotFound, Queue: g.Queue}
	}
	for n := q; n != nil && startsJob; n = n.parent {
		if n.JobsLimited && n.sum.jobs >= n.JobsMax {
			return g, &Refusal{Code: QueueOverJobs, Queue: n.shown(), JobsMax: n.JobsMax, Jobs: n.sum.jobs}
		}
	}
	// 1. Take the whole gang if it is within the limits, as it usually is.
	all, minimum := place.Vector(nil), place.Vector(nil)
	for _, d := range g.Demands {
		all = all.Plus(d.Class.Request, int64(d.Count))
		minimum = minimum.Plus(d.Class.Request, int64(d.Min))
	}
	if l.over(q, all, false) == nil {
		return g, nil
	}
	// 2. Take each demand's minimum.
	if refusal := l.over(q, minimum, false); refusal != nil {
		return g, refusal
	}
	demands := slices.Clone(g.Demands)
	order := make([]int, len(demands))
	members := 0
	for i := range demands {
		demands[i].Count = demands[i].Min
		members += demands[i].Min
		order[i] = i
	}
	// 3. Take pods up to the gang's minimum, small pods first, so that as many as possible fit.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(l.portion(demands[a].Class.Request), l.portion(demands[b].Class.Request))
	})
	taken := minimum
	take := func(i, n int) {
		n = min(n, g.Demands[i].Count-demands[i].Count, l.times(q, taken, demands[i].Class.Request))
		if n <= 0 {
			return
		}
		demands[i].Count += n
		members += n
		taken = taken.Plus(demands[i].Class.Request, int64(n))
	}
	for _, i := range order {
		take(i, g.MinMember-members)
	}
	if members < g.MinMember {
		for _, i := range order {
			if demands[i].Count < g.Demands[i].Count {
				return g, l.over(q, taken.Plus(demands[i].Class.Request, int64(g.MinMember-members)), false)
			}
		}
	}
	// 4. Take as many of the remaining pods as the limits allow.
	for i := range demands {
		take(i, g.Demands[i].Count)
	}
	g.Demands = demands
	return g, nil
}

// over finds the first limit, from the queue upwards, that the queue would exceed if it held more
// in addition. promised says whether what the queues have promised counts as held.
func (l *Ledger) over(q *queue, more place.Vector, promised bool) *Refusal {
	for ; q != nil; q = q.parent {
		for dim, amount := range more {
			limit, held := q.Capability.at(dim), q.sum.held.At(dim)
			if promised {
				held += q.sum.promised.At(dim)
			}
			if amount > 0 && limit != Unlimited && held+amount > limit {
				return &Refusal{
					Code: QueueOverCapability, Queue: q.Name, Resource: l.dims.Name(dim),
					Limit: l.dims.Quantity(dim, limit), Held: l.dims.Quantity(dim, held), Wanted: l.dims.Quantity(dim, amount),
				}
			}
		}
	}
	return nil
}

// times returns how many pods with this request fit under the limits when taken is already
// allocated.
func (l *Ledger) times(q *queue, taken, request place.Vector) int {
	n := int64(1<<31 - 1)
	for ; q != nil; q = q.parent {
		for dim, amount := range request {
			if limit := q.Capability.at(dim); amount > 0 && limit != Unlimited {
				n = min(n, max(0, limit-q.sum.held.At(dim)-taken.At(dim))/amount)
			}
		}
	}
	return int(n)
}

// portion returns the largest fraction of any of the cluster's resources that a request takes.
func (l *Ledger) portion(request place.Vector) float64 {
	most := 0.0
	for dim, amount := range request {
		if total := l.total.At(dim); total > 0 {
			most = max(most, float64(amount)/float64(total))
		}
	}
	return most
}

func (l *Ledger) queue(name string) *queue {
	q := l.queues[name]
	if q == nil {
		q = &queue{Queue: Queue{Name: name, Weight: 1}}
		l.queues[name] = q
		l.linked = false
	}
	return q
}

// add adds amounts (times sign) to a queue and to the queues above it.
func (l *Ledger) add(q *queue, a amounts, sign int64) {
	q.own.add(a, sign)
	if !l.linked {
		return // link computes the sums
	}
	for n := q; n != nil; n = n.parent {
		n.sum.add(a, sign)
		l.rate(n)
	}
	l.touched = append(l.touched, q)
}

func (a *amounts) add(b amounts, sign int64) {
	a.held = addTo(a.held, b.held, sign)
	a.pending = addTo(a.pending, b.pending, sign)
	a.promised = addTo(a.promised, b.promised, sign)
	a.jobs += sign * b.jobs
}

func addTo(v, w place.Vector, sign int64) place.Vector {
	for len(v) < len(w) {
		v = append(v, 0)
	}
	for dim, amount := range w {
		v[dim] += sign * amount
	}
	return v
}

// move puts an item into another heap of its queue, or into none.
func (l *Ledger) move(it *item, to *Heap[*item]) {
	if it.in == to {
		return
	}
	before := it.queue.offering()
	if it.in != nil {
		heap.Remove(it.in, it.at)
	}
	if it.in = to; to != nil {
		heap.Push(to, it)
	}
	l.offers(it.queue, before)
}

// offers updates the counts of offering queues, from q upwards.
func (l *Ledger) offers(q *queue, before bool) {
	now := q.offering()
	if now == before || !l.linked {
		return
	}
	change := 1
	if before {
		change = -1
	}
	for n := q; n != nil; n = n.parent {
		n.offers += change
	}
}

// settle brings the tree and the division up to date.
func (l *Ledger) settle() {
	if !l.linked {
		l.link()
	}
	if l.divided {
		l.divided = !slices.ContainsFunc(l.touched, (*queue).demandsOther)
	}
	l.touched = l.touched[:0]
	l.recall()
	if !l.divided {
		l.divide(l.queues[Root], l.total)
		l.divided = true
	}
}

// link rebuilds the tree and its sums from the queues.
func (l *Ledger) link() {
	root := l.queue(Root)
	root.known = true
	for name, q := range l.queues {
		if !q.known && len(q.ready)+len(q.parked) == 0 && empty(q.own.held) && empty(q.own.promised) && q.own.jobs == 0 {
			delete(l.queues, name)
		}
	}
	for _, q := range l.queues {
		q.parent, q.attached, q.children, q.offers = nil, false, q.children[:0], 0
		q.deserved, q.share, q.standing = q.deserved[:0], 0, standing{}
		q.sum = amounts{
			held: slices.Clone(q.own.held), pending: slices.Clone(q.own.pending), promised: slices.Clone(q.own.promised),
			jobs: q.own.jobs,
		}
	}
	for _, q := range l.queues {
		if q.attached = l.reachesRoot(q); q.attached && q != root {
			q.parent = l.queues[q.Parent]
			q.parent.children = append(q.parent.children, q)
		}
	}
	for _, q := range l.queues {
		slices.SortFunc(q.children, func(a, b *queue) int { return cmp.Compare(a.Name, b.Name) })
		for above := q.parent; above != nil; above = above.parent {
			above.sum.add(q.own, 1)
		}
	}
	l.linked, l.divided, l.recalled = true, false, false
	for _, q := range l.queues {
		l.offers(q, false)
	}
}

// missingAbove returns the first queue above q that is not known, or q's own name if there is none.
func (l *Ledger) missingAbove(q *queue) string {
	for at, levels := q, 0; levels < depthMax; levels++ {
		above := l.queues[at.Parent]
		if above == nil || !above.known {
			return at.Parent
		}
		at = above
	}
	return q.Name
}

func empty(v place.Vector) bool { return !slices.ContainsFunc(v, func(a int64) bool { return a != 0 }) }

// reachesRoot reports whether q and all queues above it are known, up to the root.
func (l *Ledger) reachesRoot(q *queue) bool {
	for range depthMax {
		if q == nil || !q.known {
			return false
		}
		if q.Name == Root {
			return true
		}
		q = l.queues[q.Parent]
	}
	return false
}

// demandsOther reports whether the queue's demand differs from its demand at the last division.
// Placing a gang moves its amounts from pending to held, and does not change the demand.
func (q *queue) demandsOther() bool {
	for dim := range max(len(q.sum.held), len(q.sum.pending), len(q.divided)) {
		if q.demand(dim) != q.divided.At(dim) {
			return true
		}
	}
	return false
}

func (q *queue) demand(dim int) int64 { return q.sum.held.At(dim) + q.sum.pending.At(dim) }
