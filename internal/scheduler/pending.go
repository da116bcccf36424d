package scheduler

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/podset/plan"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// pendingGangs holds the waiting gangs. Gangs of one line with the same requests (the same shape)
// form one shape queue, because a reason that keeps one of them waiting keeps all of them waiting.
// Only the head of a shape queue is ever offered to the ledger, never the 10,000 gangs behind it.
//
//	queue "a" ─▶ shape 1, open     head ▷ gang ▷ gang ▷ ...   head ready, the others parked
//	          ├▶ shape 2, blocked  head ▷ gang ▷ ...          all parked, until a change may help
//	queue "b" ─▶ shape 1, open     head ▷ ...
type pendingGangs struct {
	ledger *share.Ledger
	gangs  map[string]*pendingGang
	shapes map[shapeKey]*shapeQueue
	rare   int // number of gangs with a class that needs the rare filter
	// byQueue counts the gangs by queue, for the metric waitingIn, which may be nil.
	byQueue   map[string]int
	waitingIn *prometheus.GaugeVec
	// byNamespace means that gangs of different namespaces are in different shape queues, because
	// the reason why they wait names gangs, and all gangs of a shape queue are told the same.
	byNamespace bool
	line        func(queue, gang string) string // the line of a gang
}

type shapeKey struct{ line, shape string }

// pendingGang is a waiting gang, or the part of a gang above its minimum when the minimum has been
// placed.
type pendingGang struct {
	gang        *Gang
	plain       []*place.Class // of the templates, one per demand
	groups      *nodeGroups    // the affinity of the gang's queue; nil if it has none
	classes     []*place.Class // plain with groups
	left        [][]int        // per demand, the indices of the units that have no node
	mins        []int          // per demand, the minimum
	minMember   int
	mates       []types.NamespacedName // pods of the gang that may have nodes
	near        *place.Near            // gang.Near with the nodes of mates, while the gang is placed
	parts       []Part                 // as far as they have units left
	minParts    []int
	announced   place.Vector // of Gang.Announced; nil if it announces no more than its pods request
	need        int          // how many of the units left belong to the gang's minimum; the others are surplus
	fault       string       // why the gang can never be placed, or empty
	submitted   time.Time    // for the wait-time metric
	partial     bool         // the gang's minimum has been placed
	claimed     bool         // capacity is kept for the gang (see evictions)
	insists     bool         // it starts although what it announces is not free (see promises)
	reportedKey string       // key of the last reason reported to the owner
	existing    [][]bool     // per demand, the units whose pods exist or are being created; see aheadPods
	ranked      share.Gang
	queue       *shapeQueue
	at          int // position in the shape queue
}

// shapeQueue holds the gangs of one shape in one queue, as a heap with the next gang first.
type shapeQueue struct {
	key         shapeKey
	gangs       share.Heap[*pendingGang]
	blocked     *blockReason // nil when open
	reportedKey string       // key of the reason that all gangs except those in unreported were told
	unreported  []*pendingGang
	// About evictions for the head: what was found last, the generation of the model at that time,
	// and whether the search was put off.
	why       explanation
	searched  int64
	planned   int64 // the generation of the model when nodes for an overdue head were last looked for
	postponed bool
	refused   refused
	// failed is the last attempt to place the head, if it had no success.
	failed failed
	// unhelped means that the shape queue was reopened to look for pods that leave for it, and that
	// nothing has changed which could help its gangs otherwise.
	unhelped bool
}

// refused is a claim that was refused in an epoch of evictions: it is again as long as that lasts.
type refused struct {
	gang  *pendingGang
	epoch int64
}

// failed is a placement without success on nodes of a version (see evictions.version).
type failed struct {
	gang    *pendingGang
	version int64
	reason  Reason
}

// blockReason says why a shape queue waits.
type blockReason struct {
	reason  Reason
	byQueue bool // the queue blocks the shape queue, not the nodes
	rare    bool // other pods may block the shape queue
	// announced means that the pods which the gangs announce do not fit.
	announced bool
}

// curable reports whether evictions may help.
func (b *blockReason) curable() bool {
	return !b.byQueue && b.reason.Code != WaitingForVolumes || b.reason.Code == share.QueueOverCapability && !b.announced
}

func newPendingGangs(ledger *share.Ledger, line func(queue, gang string) string) *pendingGangs {
	return &pendingGangs{ledger: ledger, line: line, gangs: map[string]*pendingGang{}, shapes: map[shapeKey]*shapeQueue{}, byQueue: map[string]int{}}
}

// count adds n to the number of gangs of a queue.
func (r *pendingGangs) count(queue string, n int) {
	r.byQueue[queue] += n
	if r.waitingIn == nil {
		return
	}
	if r.byQueue[queue] > 0 {
		r.waitingIn.WithLabelValues(queue).Set(float64(r.byQueue[queue]))
		return
	}
	delete(r.byQueue, queue)
	r.waitingIn.DeleteLabelValues(queue)
}

// add puts a pending gang into its shape queue. The gang's key must not be in pendingGangs.
func (r *pendingGangs) add(e *pendingGang) {
	key := shapeKey{r.line(e.gang.Queue, e.gang.Key), e.shape()}
	if r.byNamespace {
		key.shape += "\n" + namespaceOf(e.gang.Key)
	}
	l := r.shapes[key]
	if l == nil {
		l = &shapeQueue{key: key}
		r.shapes[key] = l
	}
	e.queue = l
	r.gangs[e.gang.Key] = e
	r.rare += e.rare()
	r.count(e.gang.Queue, 1)
	e.ranked = share.Gang{
		Surplus: e.need == 0 && len(e.classes) > 0 && e.fault == "",
		Key:     e.gang.Key, Queue: key.line, Priority: e.gang.Priority, Created: e.gang.Created, Resume: e.gang.Resume,
		Request: e.request(),
	}
	heap.Push(&l.gangs, e)
	l.addUnreported(e)
	r.ledger.Submit(e.ranked)
	switch {
	case l.blocked != nil:
		r.ledger.Park(e.gang.Key)
	case e.at == 0 && len(l.gangs) > 1:
		// The previous head is a child of the new one.
		for _, second := range l.gangs[1:min(3, len(l.gangs))] {
			r.ledger.Park(second.gang.Key)
		}
	case e.at > 0:
		r.ledger.Park(e.gang.Key)
	}
}

// remove removes a pending gang, and offers the next gang of its shape queue.
func (r *pendingGangs) remove(e *pendingGang) {
	l := e.queue
	heap.Remove(&l.gangs, e.at)
	r.ledger.Remove(e.gang.Key)
	delete(r.gangs, e.gang.Key)
	r.rare -= e.rare()
	r.count(e.gang.Queue, -1)
	e.queue = nil
	if len(l.gangs) == 0 {
		delete(r.shapes, l.key)
	} else if l.blocked == nil {
		r.ledger.Wake(l.gangs[0].gang.Key)
	}
}

// setClaimed moves a pending gang to or from a shape queue of its own.
func (r *pendingGangs) setClaimed(e *pendingGang, claimed bool) {
	r.remove(e)
	e.claimed = claimed
	r.add(e)
}

// block closes a shape queue: none of its gangs is offered to the ledger until reopen.
func (r *pendingGangs) block(l *shapeQueue, b *blockReason) {
	if l.blocked == nil {
		r.ledger.Park(l.gangs[0].gang.Key)
	}
	l.blocked = b
	l.tell(b.reason.key())
}

// tell notes that the owners of the gangs are to be told the reason with this key, unless it is the last
// one that they were told.
func (l *shapeQueue) tell(key string) {
	if key != l.reportedKey {
		l.reportedKey = key
		l.unreported = append(l.unreported[:0], l.gangs...)
	}
}

// addUnreported notes that the owner of a pending gang has not been told yet why the shape queue
// waits, if it does.
func (l *shapeQueue) addUnreported(e *pendingGang) {
	if len(l.unreported) > 2*len(l.gangs)+64 { // a shape queue that never waits has nothing to report
		l.unreported = slices.DeleteFunc(l.unreported, func(e *pendingGang) bool { return e.queue != l })
	}
	l.unreported = append(l.unreported, e)
}

// reopen offers the head of a shape queue to the ledger again.
func (r *pendingGangs) reopen(l *shapeQueue) {
	if l.blocked == nil {
		return
	}
	l.blocked, l.unhelped = nil, false
	r.ledger.Wake(l.gangs[0].gang.Key)
}

// shape returns a string that is equal for gangs that can be placed under the same circumstances.
func (e *pendingGang) shape() string {
	if e.fault != "" {
		return "never " + e.gang.Key
	}
	if e.gang.Outranks {
		return "outranks " + e.gang.Key // pods of its own may leave for it
	}
	if e.claimed {
		return "claim " + e.gang.Key // it waits for certain pods to leave, unlike equal gangs
	}
	var b strings.Builder
	b.WriteString(strconv.Itoa(e.minMember))
	if e.gang.Resume {
		b.WriteByte('r') // a closed queue admits only resumed gangs
	}
	if e.partial {
		b.WriteByte('p') // partial gangs get a Reason that says so
	}
	if e.announced != nil {
		fmt.Fprint(&b, "a", e.announced)
	}
	if length := e.length(); length > 0 {
		b.WriteString("t" + length.String()) // it may use capacity that is kept for later
	}
	b.WriteString(e.nearKey())
	for i, c := range e.classes {
		if len(e.left[i]) == 0 {
			continue
		}
		b.WriteString("\n" + strconv.Itoa(e.mins[i]) + " ")
		if len(e.mins) > 1 {
			// The number of units per demand limits how MinMember can be reached.
			b.WriteString(strconv.Itoa(len(e.left[i])) + " ")
		}
		b.WriteString(classKey(c))
	}
	return b.String()
}

// classKey returns a string that is equal for classes whose pods can go to the same nodes.
func classKey(c *place.Class) string {
	if !c.Rare {
		return c.Key()
	}
	// Filters outside the fast path also depend on the pod's namespace, labels, affinity, spread
	// constraints and volumes.
	t := c.Template
	name := ""
	if plan.OwnClaims(t) {
		name = t.Name
	}
	more, err := json.Marshal([]any{t.Namespace, t.Labels, t.Spec.Affinity, t.Spec.TopologySpreadConstraints,
		t.Spec.Volumes, t.Spec.ResourceClaims, name})
	if err != nil {
		return c.Key() + string(t.UID) + t.Name
	}
	return c.Key() + string(more)
}

// rare returns 1 if a class of the pending gang needs the rare filter, else 0.
func (e *pendingGang) rare() int {
	if slices.ContainsFunc(e.classes, func(c *place.Class) bool { return c.Rare }) {
		return 1
	}
	return 0
}

// request returns the sum of the requests of all pods left.
func (e *pendingGang) request() place.Vector {
	var v place.Vector
	for i, c := range e.classes {
		v = v.Plus(c.Request, int64(len(e.left[i])))
	}
	return v
}

// asPlaced converts the pending gang to a place.Gang.
func (e *pendingGang) asPlaced() place.Gang {
	g := place.Gang{
		Key: e.gang.Key, Queue: e.gang.Queue, MinMember: e.minMember, Most: e.need, Near: e.near,
		Demands: make([]place.Demand, len(e.classes)),
	}
	for i, c := range e.classes {
		g.Demands[i] = place.Demand{Class: c, Count: len(e.left[i]), Min: e.mins[i]}
	}
	if slices.ContainsFunc(e.gang.Demands, func(d Demand) bool { return d.Rank != 0 }) {
		g.Ranks = make([]int, len(g.Demands))
		for i := range g.Ranks {
			g.Ranks[i] = e.gang.Demands[i].Rank
		}
	}
	g.MinParts = e.minParts
	for i := range e.parts {
		part := &e.parts[i]
		g.Parts = append(g.Parts, place.Part{Kind: part.Kind, Demands: part.Demands, Size: part.Size, Set: part.Set, Near: part.Near})
	}
	return g
}

// take removes the placed units, which are the first units left of each demand, and returns their
// assignments.
func (e *pendingGang) take(placed [][]int32, nodeName func(int32) string) []Assignment {
	var out []Assignment
	for d, nodes := range placed {
		for k, node := range nodes {
			out = append(out, Assignment{Demand: d, Unit: e.left[d][k], Node: nodeName(node)})
		}
	}
	for d, nodes := range placed {
		e.left[d] = slices.Clone(e.left[d][len(nodes):])
	}
	return out
}

// remainder returns a pending gang for the units left of a gang whose minimum has been placed, or
// nil if no units are left. placed are the units that have been placed.
func (e *pendingGang) remainder(placed []Assignment, now time.Time) *pendingGang {
	n := 0
	for _, left := range e.left {
		n += len(left)
	}
	if n == 0 {
		return nil
	}
	mates := e.mates
	if e.gang.Near != nil {
		mates = slices.Concat(mates, e.unitsOf(placed, nil))
	}
	return &pendingGang{
		gang: e.gang, mates: mates, parts: e.partsLeft(placed), minParts: make([]int, len(e.minParts)),
		plain: e.plain, groups: e.groups, classes: e.classes, left: e.left, mins: make([]int, len(e.mins)), minMember: 1, partial: true,
		need: max(0, e.need-len(placed)), submitted: now, reportedKey: e.reportedKey,
		existing: e.existing,
	}
}

// Before implements share.Element.
func (e *pendingGang) Before(o *pendingGang) bool { return e.ranked.Before(&o.ranked) }

// Position implements share.Element.
func (e *pendingGang) Position() *int { return &e.at }
