package batch

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// submission is one request to the scheduler. It implements scheduler.Owner, and posts the
// scheduler's answers to the job.
type submission struct {
	c     *Controller
	key   types.NamespacedName
	uid   types.UID
	tasks []int     // task of each demand
	index [][]int32 // unit indices of each demand
}

// Commit implements scheduler.Owner.
func (s *submission) Commit(g *scheduler.Gang, placed []scheduler.Assignment) {
	told := s.c.loop.Post(s.key, controlloop.Anyone, func(r *record) { s.c.committed(r, s, g, placed) })
	if !told {
		s.c.committed(&record{key: s.key}, s, g, placed)
	}
}

// queueFault returns the reason why the job's queue cannot be decoded, or nil.
func (c *Controller) queueFault(r *record) *malformed.Error {
	if r.job == nil {
		return nil
	}
	return c.Informers.Queues.Malformed("", r.job.QueueName())
}

// Waiting implements scheduler.Owner.
func (s *submission) Waiting(_ *scheduler.Gang, why scheduler.Reason) {
	s.c.loop.Post(s.key, s.uid, func(r *record) {
		if r.submitted != s {
			return
		}
		if fault := s.c.queueFault(r); fault != nil && why.Code == share.QueueNotFound {
			why.Message = fault.Error()
		}
		r.why = &why
	})
}

// ask submits a gang for the pods without a node, if the scheduler does not have all of them yet.
func (c *Controller) ask(r *record) {
	if r.invalid != "" || r.holding != "" {
		c.withdraw(r)
		return
	}
	c.rollBack(r)
	wanted := r.stale
	for ti, t := range r.tasks {
		wanted = wanted || t.counts[absent] > 0 && !r.heldBack(ti) || t.counts[unbound] > 0
	}
	if !wanted && !r.changed {
		return
	}
	if r.refusal != nil {
		if left := r.refusal.retryAt.Sub(c.Clock.Now()); left > 0 {
			c.loop.WakeAfter(r.key, left)
			return
		}
	}
	if !c.ensureObjects(r) || !wanted {
		return
	}
	c.makeUnbound(r)
	c.submit(r)
}

// makeUnbound creates the pods that must exist before they can be placed.
func (c *Controller) makeUnbound(r *record) {
	for ti, t := range r.tasks {
		if !t.afterwards || t.counts[absent] == 0 || r.heldBack(ti) {
			continue
		}
		for i := range t.units[:t.replicas] {
			if t.units[i].state == absent {
				t.set(int32(i), making)
				r.toWrite = append(r.toWrite, write{task: int32(ti), index: int32(i)})
			}
		}
	}
}

// submit requests nodes for all units without a node. A gang below its minimum is submitted only if
// enough of its pods can be placed at all: not while some are being deleted or created.
func (c *Controller) submit(r *record) {
	s := &submission{c: c, key: r.key, uid: r.uid}
	held, least := r.held(), r.least()
	need := max(0, least-held)
	perTask := r.tasksMatter()
	ran := r.everRan()
	g := &scheduler.Gang{
		Key: gangKey(r.key), Queue: r.job.QueueName(), Priority: c.priority(r), Created: r.job.CreationTimestamp.Time,
		Resume: held > 0 && held < least, Owner: s,
	}
	found, fresh := int32(0), r.stale
	for ti, t := range r.tasks {
		if r.heldBack(ti) {
			continue
		}
		template := t.plan
		var index []int32
		var names []types.NamespacedName
		for i := range t.units[:t.replicas] {
			name, ok := "", false
			switch u := &t.units[i]; u.state {
			case queued:
				name, ok = t.pods.PodName(i), true
			case absent:
				if !t.afterwards {
					name, ok, fresh = t.pods.PodName(i), true, true
				}
			case unbound:
				name = t.pods.PodName(i)
				p, exists := c.Informers.Pods.Get(r.key.Namespace, name)
				if ok = exists && p.UID == u.uid && len(p.Spec.SchedulingGates) == 0; ok {
					template, fresh = p, true
				}
			}
			if ok {
				index = append(index, int32(i))
				names = append(names, types.NamespacedName{Namespace: r.key.Namespace, Name: name})
			}
		}
		if len(index) == 0 {
			continue
		}
		atLeast := int32(0)
		if perTask && !ran {
			if atLeast = max(0, t.pods.Min-t.held()); atLeast > int32(len(index)) {
				return
			}
		}
		found += int32(len(index))
		s.tasks, s.index = append(s.tasks, ti), append(s.index, index)
		g.Demands = append(g.Demands, scheduler.Demand{Template: template, Units: names, Min: int(atLeast)})
	}
	switch {
	case ran:
		// The gang has been complete: lost pods are replaced as room allows.
		need = min(need, 1)
	case found < need:
		return
	}
	if !fresh {
		return
	}
	r.stale = false
	if found == 0 {
		c.withdrawGang(r)
		return
	}
	g.MinMember = int(need)
	for di, ti := range s.tasks {
		for _, i := range s.index[di] {
			r.tasks[ti].set(i, queued)
		}
	}
	r.submitted = s
	c.Scheduler.Submit(g)
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
	c.withdrawGang(r)
	c.dropWrites(r)
	r.stale = false
}

func (c *Controller) withdrawGang(r *record) {
	r.why = nil
	if r.submitted == nil {
		return
	}
	c.Scheduler.Withdraw(gangKey(r.key))
	r.submitted = nil
	for _, t := range r.tasks {
		if t.counts[queued] == 0 && t.surplus == 0 {
			continue
		}
		for i := range t.units {
			if t.units[i].state == queued {
				c.unplace(t, int32(i))
			}
		}
	}
}

// unplace returns a unit without a node to its state before the request.
func (c *Controller) unplace(t *task, i int32) {
	if uid := t.units[i].uid; uid != "" {
		t.set(i, unbound)
		return
	}
	t.set(i, absent)
}

// dropWrites gives back the placements that have not gone to the writer.
func (c *Controller) dropWrites(r *record) {
	for _, w := range r.toWrite {
		t := r.tasks[w.task]
		if w.node != "" {
			c.forget(r.key, t.pods.PodName(int(w.index)))
		}
		c.unplace(t, w.index)
	}
	r.toWrite = nil
}

func (c *Controller) forget(key types.NamespacedName, pod string) {
	c.Model.Forget(types.NamespacedName{Namespace: key.Namespace, Name: pod})
}

// committed applies a placement.
func (c *Controller) committed(r *record, s *submission, g *scheduler.Gang, placed []scheduler.Assignment) {
	same := r.uid == s.uid
	for _, a := range placed {
		ti, i := s.tasks[a.Demand], s.index[a.Demand][a.Unit]
		if !same || ti >= len(r.tasks) || int(i) >= len(r.tasks[ti].units) {
			c.Model.Forget(g.Demands[a.Demand].Units[a.Unit])
			continue
		}
		t := r.tasks[ti]
		switch state := t.units[i].state; {
		case state == queued:
			t.set(i, placing)
			r.toWrite = append(r.toWrite, write{int32(ti), i, a.Node, a.Annotations})
		case !state.holds():
			c.forget(r.key, t.pods.PodName(int(i)))
		}
	}
	if !same {
		return
	}
	r.why = nil
	if r.submitted != s {
		// The submission was replaced while it was being placed: its successor requests these units
		// again.
		r.stale = r.submitted != nil
		return
	}
	if r.sum()[queued] == 0 {
		r.submitted = nil
	}
}

// pump passes placed pods to the writer, up to Window at a time.
func (c *Controller) pump(r *record) {
	n := min(len(r.toWrite), c.Window-r.inflight)
	if n <= 0 {
		return
	}
	for _, w := range r.toWrite[:n] {
		c.write(r, w)
	}
	if r.toWrite = r.toWrite[n:]; len(r.toWrite) == 0 {
		r.toWrite = nil
	}
}

func (c *Controller) write(r *record, w write) {
	t := r.tasks[w.task]
	u := &t.units[w.index]
	u.attempt++
	r.inflight++
	name := types.NamespacedName{Namespace: r.key.Namespace, Name: t.pods.PodName(int(w.index))}
	owner, attempt := r.uid, u.attempt
	answer := func(p *corev1.Pod, err error) {
		switch {
		case w.node == "":
		case err != nil:
			c.Model.Forget(name)
		case p != nil && p.Spec.NodeName != "" && p.Annotations[topology.ResultAnnotation] != w.annotations[topology.ResultAnnotation]:
			// The stored pod differs from the decision: an earlier write of this pod, whose answer
			// was lost, gave it other CPUs. The pod keeps those.
			c.Model.UpsertPod(p)
		case p != nil:
			c.Model.Confirm(name, p.UID, p.ResourceVersion)
		}
		c.loop.Post(r.key, owner, func(r *record) {
			r.inflight--
			if u := &r.tasks[w.task].units[w.index]; u.attempt == attempt && (u.state == placing || u.state == making) {
				c.wrote(r, w, p, err)
			}
		})
	}
	if u.uid != "" {
		m := apiwriter.Meta{Owner: gangKey(r.key), Reason: "bind"}
		c.Writer.Bind(m, apiwriter.Binding{Pod: name, UID: u.uid, Node: w.node, Annotations: w.annotations}, func(err error) { answer(nil, err) })
		return
	}
	if t.pods.Resting() {
		c.compile(r, c.limitRanges(r.key.Namespace))
	}
	m := apiwriter.Meta{Owner: gangKey(r.key), Reason: "job-pod"}
	c.Writer.Create(m, t.pods.Pod(int(w.index), w.node, w.annotations), func(o apiwriter.Object, err error) {
		p, _ := o.(*corev1.Pod)
		answer(p, err)
	})
}

// wrote applies the writer's answer to a pod's create or binding.
func (c *Controller) wrote(r *record, w write, p *corev1.Pod, err error) {
	t := r.tasks[w.task]
	switch {
	case errors.Is(err, apiwriter.ErrStopped):
	case err != nil:
		c.refused(r, w, err)
	case p == nil: // bound
		t.set(w.index, created)
	case w.node == "":
		t.units[w.index].uid = p.UID
		t.set(w.index, stateOf(p))
	default:
		u := &t.units[w.index]
		u.uid, u.version = p.UID, p.ResourceVersion
		t.set(w.index, created)
		c.checkStored(r, w, p)
	}
	if t.made() {
		t.pods.Rest()
	}
}

// checkStored compares the pod that the API server stored with the placement.
func (c *Controller) checkStored(r *record, w write, p *corev1.Pod) {
	t := r.tasks[w.task]
	if p.Spec.NodeName != w.node {
		// An earlier write of this pod, whose answer was lost, put the pod on another node, where
		// it stays.
		c.forget(r.key, p.Name)
		return
	}
	if c.nodeMissing(w.node) {
		c.deletePod(r, int(w.task), w.index, new(int64), "replace-lost-pod")
		return
	}
	if !pods.AsPlanned(t.plan, p) || w.annotations != nil && p.Annotations[topology.ResultAnnotation] == "" {
		c.Log.Info("admission changed a pod's requests or constraints: its task's pods are created first and bound later",
			"job", r.key, "task", t.pods.Name)
		t.afterwards = true
		c.deletePod(r, int(w.task), w.index, new(int64), "replace-changed-pod")
	}
}

// rollBack deletes the pods of a gang that has never been complete and cannot be completed now, so
// that it holds nothing while it waits.
func (c *Controller) rollBack(r *record) {
	if r.why == nil && r.refusal == nil || r.inflight > 0 || len(r.toWrite) > 0 {
		return
	}
	if held := r.held(); held == 0 || held >= r.minAvailable() || r.everRan() || r.dependent && held >= r.leastFirst() {
		return
	}
	c.withdrawGangKeep(r)
	for ti, t := range r.tasks {
		for i := range t.units {
			if s := t.units[i].state; s.hasPod() && !s.ended() {
				c.deletePod(r, ti, int32(i), nil, "roll-back-gang")
			}
		}
	}
}

// withdrawGangKeep withdraws the gang but keeps the reason why it waited.
func (c *Controller) withdrawGangKeep(r *record) {
	why := r.why
	c.withdrawGang(r)
	r.why = why
}

// Bounds of the backoff after a refusal.
const (
	retryMin = time.Second
	retryMax = 5 * time.Minute
)
