package batch

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// happened handles an answer of the scheduler or the writer about the job's pods.
func (c *Controller) happened(r *record, e podset.Event) {
	switch e.Kind {
	case podset.Placed:
		// What is left waits for the reason that was told last: it is not told again.
		if r.pods.Sum()[podset.Queued] == 0 {
			r.why = nil
		}
	case podset.Waits:
		r.why = e.Request.Why
		r.ahead = r.ahead || r.why.Ahead != nil
		if fault := c.Informers.Queues.Malformed("", r.queue); fault != nil && r.why.Code == share.QueueNotFound {
			r.why.Message = fault.Error()
		}
	case podset.BindFailed:
		if p, ok := c.Informers.Pods.Get(r.key.Namespace, e.PodName(int(e.Index))); ok {
			c.takePod(r, p)
		}
	case podset.Refused:
		r.notAhead = r.notAhead || r.ahead
		c.refuse(r, reasonFor(e.Err), e.Err)
	}
}

// ask submits a gang for the pods without a node, if the scheduler does not have all of them yet.
func (c *Controller) ask(r *record) {
	r.countMost()
	r.gated = 0
	if r.invalid != "" || r.holding != "" || r.queue == "" {
		c.withdraw(r)
		return
	}
	c.rollBack(r)
	r.deleteAhead()
	r.ahead = r.ahead && r.pods.Sum()[podset.Creating] > 0
	if q := r.pods.Requests()[gangKey(r.key)]; q != nil {
		r.stale = r.stale || q.Stale
	}
	wanted := r.stale
	for ti, t := range r.tasks {
		wanted = wanted || t.Counts[podset.Absent] > 0 && !r.heldBack(ti) || t.Counts[podset.Unbound] > 0
	}
	if !wanted && !r.changed {
		return
	}
	if left := r.refusal.Left(c.Clock.Now()); left > 0 {
		c.loop.WakeAfter(r.key, left)
		return
	}
	if !c.ensureObjects(r) || !wanted {
		return
	}
	c.makeUnbound(r)
	if !r.ahead { // the gang is submitted as a whole, when its pods exist
		c.submit(r)
	}
}

// deleteAhead deletes pods that were created before they had nodes, once the API server has refused
// others of the job.
func (r *record) deleteAhead() {
	for _, t := range r.tasks {
		if !r.notAhead || t.BindLater || t.Counts[podset.Unbound] == 0 {
			continue
		}
		for i, slot := range t.Slots() {
			if slot.State() == podset.Unbound {
				r.pods.Delete(t.ref(i), nil, "roll-back-ahead")
			}
		}
	}
}

// explainPods writes into the pods that exist and have no nodes why they wait, where people and
// autoscalers look.
func (c *Controller) explainPods(r *record) {
	if !c.PodsAhead || r.ahead || r.why == nil || r.waiting() == 0 {
		return
	}
	reason, message := r.why.Code, r.why.Message
	if short := r.why.Shortage; short != nil {
		reason = corev1.PodReasonUnschedulable
		if short.Domain != nil {
			message = short.Counted()
		}
	}
	if left := r.pods.Explain(reason, message); left > 0 {
		c.loop.WakeAfter(r.key, left)
	}
}

// countMost updates how many pods have had nodes at a time. Pods that the job's spec no longer asks
// for do not count.
func (r *record) countMost() {
	held, replicas := r.pods.Sum().Held(), int32(0)
	for _, t := range r.tasks {
		replicas += t.Replicas
	}
	if !r.everRan() {
		r.most = 0
	}
	r.most = min(max(r.most, held), replicas)
}

// makeUnbound creates the pods that must exist before they can be placed.
func (c *Controller) makeUnbound(r *record) {
	for ti, t := range r.tasks {
		if !t.BindLater || t.Counts[podset.Absent] == 0 || r.heldBack(ti) {
			continue
		}
		for i, slot := range t.Slots() {
			if slot.State() == podset.Absent {
				r.pods.Create(t.ref(i))
			}
		}
	}
}

// submit requests nodes for all slots without a node. A gang below its minimum is submitted only if
// enough of its pods can be placed at all: not while some are being deleted or created.
func (c *Controller) submit(r *record) {
	held, least := r.pods.Sum().Held(), r.least()
	need := max(0, least-held)
	perTask := r.tasksMatter()
	alive := r.alive()
	ran := r.everRan() && alive
	g := &scheduler.Gang{
		Key: gangKey(r.key), Queue: r.queue, Priority: c.priority(r), Created: r.job.CreationTimestamp.Time,
		PriorityClass: r.job.Spec.PriorityClassName,
		// A gang that is complete and grows waits like others.
		Resume: alive && held < least && (!r.everRan() || held < r.most),
		Ahead:  c.PodsAhead && !r.notAhead,
	}
	g.WaitAtMost, _ = scheduling.WaitingTime(r.job)
	if g.Near = scheduler.NearOf(r.job.Spec.NetworkTopology); g.Near != nil {
		g.Mates = r.placed()
	}
	if !r.everRan() {
		if g.Since = g.Created; r.status.State.LastTransitionTime.After(g.Since) {
			g.Since = r.status.State.LastTransitionTime.Time
		}
	}
	var slots [][]podset.Ref
	found, fresh := int32(0), r.stale
	ranks, _ := pods.TaskRanks(r.job)
	order, priorities := c.byPriority(r, ranks)
	first := -1                // the task of the first demand
	for _, ti := range order { // pods above the minimum are placed in the order of the demands
		t := r.tasks[ti]
		if r.heldBack(ti) {
			continue
		}
		if parts := r.job.Spec.Tasks[ti].PartitionPolicy; divides(parts) {
			more, isFresh, enough := c.addPartitions(r, t, parts, perTask && !ran, ran, g, &slots)
			if !enough {
				return
			}
			found, fresh = found+more, fresh || isFresh
			continue
		}
		refs, template, isFresh := c.wantNodes(r, t, 0, int(t.Replicas))
		fresh = fresh || isFresh
		if len(refs) == 0 {
			continue
		}
		atLeast := int32(0)
		if perTask && !ran {
			if atLeast = max(0, t.pods.Min-t.Counts.Held()); atLeast > int32(len(refs)) {
				return
			}
		}
		if found += int32(len(refs)); first < 0 {
			first = ti
		}
		slots = append(slots, refs)
		g.Demands = append(g.Demands, scheduler.Demand{Template: template, Min: int(atLeast)})
		if ranks != nil {
			g.Demands[len(g.Demands)-1].Rank = ranks[ti]
		}
	}
	if held == 0 {
		g.Surplus = int(found - max(need, 1)) // without a minimum, the first pod is not surplus
	} else {
		g.Surplus = int(found - need)
	}
	switch {
	case ran:
		// The gang has been complete, and a part of it still is: lost pods are replaced as room allows.
		need = min(need, 1)
	case found < need:
		return
	}
	if !fresh {
		return
	}
	r.stale = false
	if found == 0 {
		r.why = nil
		r.pods.WithdrawGangs()
		return
	}
	g.MinMember = max(int(need), g.LeastParts())
	g.Outranks = first >= 0 && len(g.Parts) == 0 && r.hasLower(priorities, priorities[first]) && !reactsToEvictions(&r.job.Spec)
	r.pods.Submit(g, slots)
}

// byPriority returns the indices of the tasks, those with the highest priority first, and among equals
// by rank, if they have ranks. A task without a PriorityClass of its own has the job's. It also returns
// the priority of each task.
func (c *Controller) byPriority(r *record, ranks []int) (order []int, values []int32) {
	order, values = make([]int, len(r.tasks)), make([]int32, len(r.tasks))
	for i, t := range r.tasks {
		order[i] = i
		if t.Plan != nil {
			values[i], _ = c.Model.Priority(t.Plan.Spec.PriorityClassName)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if by := cmp.Compare(values[b], values[a]); by != 0 || ranks == nil {
			return by
		}
		return cmp.Compare(ranks[a], ranks[b])
	})
	return order, values
}

// hasLower reports whether pods of a task have nodes whose priority is below a value.
func (r *record) hasLower(priorities []int32, value int32) bool {
	for i, t := range r.tasks {
		if priorities[i] < value && t.Counts.Held() > t.Counts[podset.Succeeded]+t.Counts[podset.Failed] {
			return true
		}
	}
	return false
}

// placed returns the names of the pods that hold a node.
func (r *record) placed() (names []types.NamespacedName) {
	for _, t := range r.tasks {
		for i, slot := range t.Slots() {
			if slot.State().Holds() && !slot.State().Ended() {
				names = append(names, types.NamespacedName{Namespace: r.key.Namespace, Name: t.PodName(i)})
			}
		}
	}
	return names
}

// tasksMatter reports whether the minimum of each task is part of the gang's minimum. It is not if
// the job's minAvailable is below the sum of the tasks' minimums.
func (r *record) tasksMatter() bool {
	sum := int32(0)
	for _, t := range r.tasks {
		sum += t.pods.Min
	}
	return r.minAvailable() >= sum
}

func (c *Controller) priority(r *record) int32 {
	value, _ := c.Model.Priority(r.job.Spec.PriorityClassName)
	return value
}

// resubmit marks the request at the scheduler as outdated.
func (c *Controller) resubmit(r *record) { r.stale, r.changed = true, true }

// withdraw takes back all requests and placements that have not become pods.
func (c *Controller) withdraw(r *record) {
	r.pods.Withdraw()
	r.why, r.stale = nil, false
}

// pump passes placed pods to the writer. A task whose pods are all written releases its pod
// template until a pod is replaced: otherwise ten thousand idle jobs would keep ten thousand unused
// templates in memory.
func (c *Controller) pump(r *record) {
	for _, t := range r.tasks {
		if t.pods.Resting() && !t.Written() {
			c.compile(r, c.limitRanges(r.key.Namespace))
			break
		}
	}
	r.pods.Pump()
	for _, t := range r.tasks {
		if t.Written() {
			t.pods.Rest()
		}
	}
}

// rollBack deletes the pods of a gang that has never been complete and cannot be completed now, so
// that it holds nothing while it waits.
func (c *Controller) rollBack(r *record) {
	if r.why == nil && !r.refusal.Noted() || r.pods.Busy() {
		return
	}
	if held := r.pods.Sum().Held(); held == 0 || held >= r.minAvailable() || r.everRan() || r.dependent && held >= r.leastFirst() {
		return
	}
	r.pods.RollBack()
}
