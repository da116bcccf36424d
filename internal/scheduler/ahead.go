package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

const (
	// aheadAfter is how long a gang waits before its pods are created without nodes. Most gangs that
	// wait do so for pods that are ending, and are placed sooner, with one write for each pod.
	aheadAfter = 2 * time.Second
	// aheadEvery is the shortest interval between two passes over the waiting gangs.
	aheadEvery = time.Second
	// aheadRefusalsMax is the number of gangs of a queue for which a pass asks in vain whether the
	// queue would take them.
	aheadRefusalsMax = 32
)

// aheadPods decides which waiting gangs have their pods created before they have nodes, so that
// whoever adds nodes to the cluster sees what they are needed for. These are gangs that their queues
// take and that the nodes have no room for.
//
//	refused by its queue ─▶ no pods
//	no room, for aheadAfter ─▶ first in its queue, or fewer pods than max exist? ─▶ Owner.Waiting(Reason.Ahead)
//
// Pods that exist stay: they count, and are not taken back for others. What the gangs with such pods
// request counts against the limits of their queues, so that no node is added for a gang that its
// queue would not start.
//
// Nothing of this is stored. After a restart the owner says which pods exist (Demand.Existing).
type aheadPods struct {
	s    *Scheduler
	max  int
	last time.Time // of the last pass
	next time.Time // when the next pass is due; zero if there is nothing to wait for
}

// aheadQueue is a queue during a pass.
type aheadQueue struct {
	name  string
	pods  int            // that exist, or are being created, of all its waiting gangs
	gangs []*pendingGang // that wait for room and lack pods, the next one first
	tries int            // left in this pass
}

// due returns when a cycle is due for this, or zero.
func (r *aheadPods) due() time.Time { return r.next }

// update asks owners to create pods of gangs that wait for room.
func (r *aheadPods) update() {
	if r.max == 0 {
		return
	}
	now := r.s.clock.Now()
	if wait := r.last.Add(aheadEvery); now.Before(wait) {
		r.next = wait
		return
	}
	r.last, r.next = now, time.Time{}
	// 1. Which gangs have pods, and which lack them?
	queues, pods, having := r.collect(now)
	if len(queues) == 0 {
		return
	}
	// 2. During the pass, gangs with pods count as if they had nodes.
	for _, e := range having {
		r.charge(e, 1)
	}
	// 3. Queues with fewer pods come first.
	order := slices.SortedFunc(maps.Values(queues), func(a, b *aheadQueue) int { return cmp.Compare(a.name, b.name) })
	for {
		var q *aheadQueue
		for _, o := range order {
			if len(o.gangs) > 0 && (o.pods == 0 || pods < r.max) && (q == nil || o.pods < q.pods) {
				q = o
			}
		}
		if q == nil {
			break
		}
		e := q.gangs[0]
		q.gangs = q.gangs[1:]
		had := e.existingUnits() > 0
		if had {
			r.charge(e, -1)
		}
		n := r.ask(e)
		if had || n > 0 {
			r.charge(e, 1)
		}
		switch {
		case n > 0 && !had:
			having = append(having, e)
		case n == 0:
			if q.tries--; q.tries == 0 {
				q.gangs = nil
			}
		}
		q.pods, pods = q.pods+n, pods+n
	}
	for _, e := range having {
		r.charge(e, -1)
	}
}

// collect returns the queues with gangs that lack pods, in which those come first that are placed
// first; the number of pods without nodes that exist in all queues; and the gangs that have such pods.
func (r *aheadPods) collect(now time.Time) (queues map[string]*aheadQueue, pods int, having []*pendingGang) {
	queues = map[string]*aheadQueue{}
	exist := map[string]int{}
	for _, e := range r.s.pending.gangs {
		if !e.gang.Ahead {
			continue
		}
		n := e.existingUnits()
		if n > 0 {
			having = append(having, e)
			exist[e.gang.Queue] += n
			pods += n
		}
		if !r.lacks(e, n) {
			continue
		}
		if due := e.submitted.Add(aheadAfter); now.Before(due) {
			if r.next.IsZero() || due.Before(r.next) {
				r.next = due
			}
			continue
		}
		q := queues[e.gang.Queue]
		if q == nil {
			q = &aheadQueue{name: e.gang.Queue, tries: aheadRefusalsMax}
			queues[q.name] = q
		}
		q.gangs = append(q.gangs, e)
	}
	for _, q := range queues {
		q.pods = exist[q.name]
		slices.SortFunc(q.gangs, func(a, b *pendingGang) int {
			if a.Before(b) {
				return -1
			}
			return 1
		})
	}
	return queues, pods, having
}

// lacks reports whether a gang, of which this many pods exist, waits for room and lacks pods. A gang for
// which others have to leave does not: it needs no more nodes.
func (r *aheadPods) lacks(e *pendingGang, existing int) bool {
	b := e.queue.blocked
	if b == nil || b.byQueue || b.reason.Shortage == nil || existing >= e.units() {
		return false
	}
	claim := r.s.evictions.claims[e.gang.Key]
	return claim == nil || claim.waits != nil
}

// ask has the owner create the pods of a gang that its queue would take now. It returns how many.
func (r *aheadPods) ask(e *pendingGang) (n int) {
	gang, refused := r.s.ledger.Admit(e.asPlaced(), r.s.isStart(e))
	if refused != nil {
		return 0
	}
	reason := e.queue.blocked.reason
	reason.Ahead = make([][]int, len(e.left))
	for d, left := range e.left {
		more := gang.Demands[d].Count
		for _, unit := range left {
			if e.exists(d, unit) {
				more--
			}
		}
		for _, unit := range left {
			if more > 0 && !e.exists(d, unit) {
				reason.Ahead[d] = append(reason.Ahead[d], unit)
				more--
				n++
			}
		}
	}
	if n == 0 {
		return 0
	}
	for d, units := range reason.Ahead {
		e.markExisting(d, units)
	}
	e.reportedKey = reason.key()
	e.gang.Owner.Waiting(e.gang, reason)
	return n
}

// charge counts the existing pods of a waiting gang as held by its queue, sign times.
func (r *aheadPods) charge(e *pendingGang, sign int64) {
	var amount place.Vector
	for d, left := range e.left {
		for _, unit := range left {
			if e.exists(d, unit) {
				amount = amount.Plus(e.classes[d].Request, sign)
			}
		}
	}
	r.s.ledger.Charge(e.gang.Queue, amount)
	if r.s.isStart(e) {
		r.s.ledger.ChargeJobs(e.gang.Queue, sign)
	}
}

// exists reports whether the pod of a unit exists or is being created.
func (e *pendingGang) exists(d, unit int) bool { return e.existing[d] != nil && e.existing[d][unit] }

// existingUnits returns how many units without a node exist as pods.
func (e *pendingGang) existingUnits() (n int) {
	for d, left := range e.left {
		if e.existing[d] == nil {
			continue
		}
		for _, unit := range left {
			if e.existing[d][unit] {
				n++
			}
		}
	}
	return n
}

// units returns the number of units without a node.
func (e *pendingGang) units() (n int) {
	for _, left := range e.left {
		n += len(left)
	}
	return n
}

// markExisting records that pods of units are being created.
func (e *pendingGang) markExisting(d int, units []int) {
	if len(units) == 0 {
		return
	}
	marks := make([]bool, len(e.gang.Demands[d].Units))
	copy(marks, e.existing[d])
	for _, unit := range units {
		marks[unit] = true
	}
	e.existing = slices.Clone(e.existing)
	e.existing[d] = marks
}
