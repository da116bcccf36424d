package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/backfill"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// Bounds of the claims of overdue gangs.
const (
	// overdueClaimsMax is the number of gangs, of different queues, for which capacity is kept at a
	// time.
	overdueClaimsMax = 4
	// overdueShare bounds the time spent on searches for nodes: between two of them passes at least
	// overdueShare times the duration of the first.
	overdueShare = 10
	// overdueEvery is the interval at which cycles run for overdue gangs for which nothing could be
	// kept.
	overdueEvery = time.Second
)

// overdue keeps capacity for gangs that have waited too long: the first gang of each queue. A
// gang gets a claim, like one that evicts others, but nobody leaves for it. Pods end by themselves,
// and nobody else gets the capacity that they leave on the nodes of the claim. A gang that its
// queue's capability holds up gets a claim without nodes: the amounts alone count against the queue.
//
// Nothing of this is stored. After a restart, gangs have waited since they were submitted, or since
// Gang.Since.
type overdue struct {
	s     *Scheduler
	after time.Duration // 0: only gangs with a bound of their own get capacity
	next  time.Time     // when nodes may be looked for again
	// lifted are the claims of others that the gang being placed may use.
	lifted []*claim
}

// ending is the part of a claim that waits for pods that end by themselves.
type ending struct {
	// starts is when the gang can start at the latest; zero if that is unknown.
	starts   time.Time
	priority int32
	minimum  place.Vector // of the gang, when the claim was made
}

// bound returns how long a pending gang waits before capacity is kept for it; 0 means for ever.
func (r *overdue) bound(e *pendingGang) time.Duration {
	if e.gang.WaitAtMost > 0 {
		return e.gang.WaitAtMost
	}
	return r.after
}

// deadline returns when a pending gang has waited too long, or zero if it never has.
func (r *overdue) deadline(e *pendingGang) time.Time {
	bound := r.bound(e)
	if bound <= 0 || e.need == 0 || e.partial || e.fault != "" {
		return time.Time{}
	}
	return e.since().Add(bound)
}

// since returns when a pending gang began to wait.
func (e *pendingGang) since() time.Time {
	if e.gang.Since.IsZero() {
		return e.submitted
	}
	return e.gang.Since
}

// candidates returns, by queue, the gangs for which capacity may be kept next: those whose own bound
// has passed, the one that waits longest first, or else the first gang in line.
func (r *overdue) candidates(now time.Time) map[string]*pendingGang {
	first, kept := map[string]*pendingGang{}, map[string]bool{}
	held := 0
	for _, c := range r.s.evictions.claims {
		if kept[c.queue] = kept[c.queue] || c.waits != nil; c.waits != nil {
			held++
		}
	}
	if held >= overdueClaimsMax {
		return nil
	}
	for _, l := range r.s.pending.shapes {
		e := l.gangs[0]
		if l.blocked != nil && !l.blocked.curable() || kept[e.gang.Queue] || e.claimed || r.deadline(e).IsZero() {
			continue
		}
		if o := first[e.gang.Queue]; o == nil || r.sooner(e, o, now) {
			first[e.gang.Queue] = e
		}
	}
	return first
}

// sooner reports whether a gang is overdue before another one of its queue: if its own bound has
// passed, or passed first, and otherwise if it is before the other one in line.
func (r *overdue) sooner(e, o *pendingGang, now time.Time) bool {
	urgent := func(e *pendingGang) bool { return e.gang.WaitAtMost > 0 && !now.Before(r.deadline(e)) }
	switch {
	case urgent(e) != urgent(o):
		return urgent(e)
	case urgent(e) && !r.deadline(e).Equal(r.deadline(o)):
		return r.deadline(e).Before(r.deadline(o))
	}
	return e.Before(o)
}

// longer reports whether a gang has been overdue for longer than one of another queue.
func (r *overdue) longer(e, o *pendingGang) bool {
	return cmp.Or(r.deadline(e).Compare(r.deadline(o)), cmp.Compare(e.gang.Key, o.gang.Key)) < 0
}

// again returns the shape queues whose heads are overdue, and for which nodes may be looked for now.
func (r *overdue) again() map[*shapeQueue]bool {
	now := r.s.clock.Now()
	if now.Before(r.next) {
		return nil
	}
	var out map[*shapeQueue]bool
	for _, e := range r.candidates(now) {
		if !now.Before(r.deadline(e)) && e.queue.planned != r.s.cluster.Generation() {
			if out == nil {
				out = map[*shapeQueue]bool{}
			}
			out[e.queue] = true
		}
	}
	return out
}

// due returns when again may return something, or zero.
func (r *overdue) due() (at time.Time) {
	now := r.s.clock.Now()
	for _, e := range r.candidates(now) {
		if !now.Before(r.deadline(e)) && e.queue.planned == r.s.cluster.Generation() {
			continue
		}
		next := r.deadline(e)
		if next.Before(r.next) {
			next = r.next
		}
		if !next.After(now) {
			next = now.Add(overdueEvery) // the cycle that has just ended could do nothing for it
		}
		if at.IsZero() || next.Before(at) {
			at = next
		}
	}
	return at
}

// claimFor keeps capacity for a gang that does not fit, if it is overdue and its turn has come. It
// reports whether it does.
func (r *overdue) claimFor(e *pendingGang, byQueue, dependsOnPods bool) bool {
	now := r.s.clock.Now()
	deadline, generation := r.deadline(e), r.s.cluster.Generation()
	if deadline.IsZero() || now.Before(deadline) || now.Before(r.next) || e.queue.planned == generation {
		return false
	}
	held := 0
	for _, c := range r.s.evictions.claims {
		if c.waits == nil {
			continue
		}
		if held++; c.queue == e.gang.Queue {
			return false
		}
	}
	if held >= overdueClaimsMax {
		return false
	}
	for queue, o := range r.candidates(now) {
		if queue == e.gang.Queue && r.sooner(o, e, now) || queue != e.gang.Queue && r.longer(o, e) && o.queue.planned != generation {
			return false
		}
	}
	r.restore() // what is kept for others is not there for long
	generation = r.s.cluster.Generation()
	e.queue.planned = generation
	c := r.find(e, byQueue, dependsOnPods)
	r.next = r.s.clock.Now().Add(overdueShare * r.s.clock.Since(now))
	if c == nil {
		return false
	}
	v := r.s.evictions
	v.claims[c.gang] = c
	v.restore(c)
	r.s.pending.setClaimed(e, true)
	for _, l := range r.s.pending.shapes {
		if l.blocked != nil && l.blocked.curable() && !l.gangs[0].claimed {
			r.s.pending.reopen(l) // they are told of the claim
		}
	}
	r.s.log.Info("keeping capacity for a gang that has waited too long", "gang", c.gang, "pods", len(c.room))
	return true
}

// find returns the claim for a gang, or nil if it could not start on any nodes.
func (r *overdue) find(e *pendingGang, byQueue, dependsOnPods bool) (c *claim) {
	c = &claim{gang: e.gang.Key, queue: e.gang.Queue, waits: &ending{priority: e.gang.Priority, minimum: e.minimum()}}
	because := fmt.Sprintf(", because it has waited longer than %v", r.bound(e))
	if byQueue {
		c.sum = c.waits.minimum
		c.why = sentence("what other pods of its queue release is kept for it" + because)
		return c
	}
	if dependsOnPods || slices.ContainsFunc(e.classes, func(c *place.Class) bool { return c.Pins != nil }) {
		return nil // whether its pods fit depends on more than free resources
	}
	var plan *backfill.Plan
	panicked := r.s.cfg.Guard.Try("backfill", gangName(e.gang.Key), func() {
		options := r.s.cfg.Place
		options.Rare, options.Pin = nil, nil
		pods := r.ending()
		plan = backfill.Find(r.s.view.Snapshot, options, e.asPlaced(), pods)
	})
	if panicked != nil || plan == nil {
		return nil
	}
	nodes := map[string]bool{}
	for d, list := range plan.Nodes {
		for _, node := range list {
			nodes[node] = true
			c.room = append(c.room, cluster.Claim{Node: node, Class: e.classes[d]})
			c.sum = c.sum.Plus(e.classes[d].Request, 1)
		}
	}
	c.waits.starts = plan.Starts
	on := "1 node"
	if len(nodes) != 1 {
		on = fmt.Sprintf("%d nodes", len(nodes))
	}
	c.why = sentence("what becomes free on " + on + " is kept for it" + because)
	if !plan.Starts.IsZero() {
		c.why.detail += ", and it starts by " + plan.Starts.UTC().Format(time.RFC3339)
	}
	return c
}

// ending returns the pods that end by themselves.
func (r *overdue) ending() []backfill.Pod {
	var out []backfill.Pod
	now := r.s.clock.Now()
	v := r.s.evictions
	v.roster.follow(v)
	for o := range v.roster.all() {
		p := backfill.Pod{Node: o.Node, Request: o.Request, NonZero: o.NonZero, Ports: o.Ports, Started: now}
		if o.Object != nil {
			p.Started = o.Object.CreationTimestamp.Time
			switch {
			case v.isLeaving(o.Object):
				p.Ends = now
			case o.Object.Spec.RestartPolicy == corev1.RestartPolicyAlways:
				continue
			default:
				if d := DurationOf(o.Object); d > 0 && p.Started.Add(d).After(now) {
					p.Ends = p.Started.Add(d)
				}
			}
		}
		out = append(out, p)
	}
	return out
}

// DurationOf returns how long a pod runs at most, as far as it says so, or 0.
func DurationOf(p *corev1.Pod) time.Duration {
	d, _ := schedulingv1beta1.ExpectedDuration(p)
	if s := p.Spec.ActiveDeadlineSeconds; s != nil && *s > 0 {
		if limit := time.Duration(*s) * time.Second; d == 0 || limit < d {
			d = limit
		}
	}
	return d
}

// explain says why a gang that does not fit waits: for pods that leave for it, for capacity that is
// kept for it, or for capacity that is kept for others.
func (r *overdue) explain(e *pendingGang, reason *Reason, dependsOnPods bool) {
	v := r.s.evictions
	byQueue := reason.Code == share.QueueOverCapability
	if c := v.claims[e.gang.Key]; c != nil && c.waits != nil {
		if (byQueue || len(c.room) > 0) && slices.Equal(c.waits.minimum, e.minimum()) {
			v.restore(c)
			reason.explainEviction(c.why)
			return
		}
		v.release(e.gang.Key) // it has changed, or the queue takes it and the nodes do not
	}
	why := v.claimFor(e, dependsOnPods)
	if v.claims[e.gang.Key] == nil && r.claimFor(e, byQueue, dependsOnPods) {
		why = v.claims[e.gang.Key].why
	} else if v.claims[e.gang.Key] == nil && r.keptFromOthers(e, byQueue) {
		const kept = "capacity is kept for a gang that has waited longer"
		if why.stable == "" {
			why = sentence(kept)
		} else {
			why.stable, why.detail = why.stable+"; "+kept, why.detail+"; "+kept
		}
	}
	reason.explainEviction(why)
}

// keptFromOthers reports whether a pod of the gang would fit into capacity that is kept for others.
func (r *overdue) keptFromOthers(e *pendingGang, byQueue bool) bool {
	for _, c := range r.s.evictions.claims {
		if c.waits == nil {
			continue
		}
		if byQueue && c.queue == e.gang.Queue {
			return true
		}
		on := map[string]place.Vector{}
		for _, x := range c.room {
			on[x.Node] = on[x.Node].Plus(x.Class.Request, 1)
		}
		for name, kept := range on {
			i, found := r.s.view.Index(name)
			if !found || byQueue {
				continue
			}
			n := *r.s.view.Node(i)
			n.Used = n.Used.Plus(kept, -1)
			if slices.ContainsFunc(e.classes, func(class *place.Class) bool { return class.Admits(&n) && roomFor(&n, class) }) {
				return true
			}
		}
	}
	return false
}

// passes reports whether a gang may use capacity that is kept for another one: it has higher priority
// in the same queue, or ends before the other one can start.
func (r *overdue) passes(e *pendingGang, c *claim) bool {
	if e.gang.Key == c.gang || c.waits == nil {
		return false
	}
	if e.gang.Queue == c.queue && e.gang.Priority > c.waits.priority {
		return true
	}
	if c.waits.starts.IsZero() {
		return false
	}
	length := e.length()
	return length > 0 && !r.s.clock.Now().Add(length).After(c.waits.starts)
}

// length returns how long the gang's waiting pods run at most, rounded up to 1, 2, 4 and so on
// minutes: gangs of one shape queue have the same length. It is 0 if that is unknown.
func (e *pendingGang) length() time.Duration {
	longest := time.Duration(0)
	for d := range e.gang.Demands {
		if len(e.left[d]) == 0 {
			continue
		}
		length := DurationOf(e.gang.Demands[d].Template)
		if length == 0 {
			return 0
		}
		longest = max(longest, length)
	}
	if longest == 0 || longest > lengthMax {
		return 0
	}
	rounded := time.Minute
	for rounded < longest {
		rounded *= 2
	}
	return rounded
}

// lengthMax is the longest time that is known: what runs longer ends at an unknown time.
const lengthMax = 365 * 24 * time.Hour

// passesAny reports whether a gang may use capacity that is kept for any other one.
func (r *overdue) passesAny(e *pendingGang) bool {
	for _, c := range r.s.evictions.claims {
		if r.passes(e, c) {
			return true
		}
	}
	return false
}

// lift makes the capacity free that a gang may use although it is kept for others. The caller must
// call restore after the gang has been placed.
func (r *overdue) lift(e *pendingGang) {
	for _, c := range r.s.evictions.claims {
		if r.passes(e, c) && c.kept {
			r.s.evictions.lift(c.gang)
			r.lifted = append(r.lifted, c)
		}
	}
}

// restore keeps the capacity again that lift made free.
func (r *overdue) restore() {
	for _, c := range r.lifted {
		if r.s.evictions.claims[c.gang] == c && !c.kept {
			r.s.evictions.restore(c)
		}
	}
	r.lifted = r.lifted[:0]
}

// minimum returns the sum of the requests of the gang's minimum, its smallest pods first.
func (e *pendingGang) minimum() place.Vector {
	var sum place.Vector
	members, order := 0, make([]int, len(e.classes))
	for d, c := range e.classes {
		order[d] = d
		sum = sum.Plus(c.Request, int64(e.mins[d]))
		members += e.mins[d]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return slices.Compare(e.classes[a].Request, e.classes[b].Request)
	})
	for _, d := range order {
		n := max(0, min(e.minMember-members, len(e.left[d])-e.mins[d]))
		sum = sum.Plus(e.classes[d].Request, int64(n))
		members += n
	}
	return sum
}
