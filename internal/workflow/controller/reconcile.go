package controller

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// reconcile runs one turn of a workflow: it takes in events, steps the engine, submits and creates
// pods, writes the status and deletes what is due.
func (c *Controller) reconcile(key types.NamespacedName) {
	w, exists := c.Informers.Workflows.Get(key.Namespace, key.Name)
	epoch := c.epoch.Load()
	mine := exists && c.mine(w)
	if r := c.loop.Get(key); r != nil && r.epoch != epoch { // writes in flight have been cut off
		c.abandon(r, exists && w.UID == r.uid)
		c.drop(key, r)
	}
	if mine && c.loop.Get(key) == nil && !(c.taken.settled(w) && c.released.settled(w)) {
		return // a watch event or an answer from the server wakes the key again
	}
	idle := !mine || c.atRest(w)
	r := c.loop.Get(key)
	if r == nil {
		if idle {
			return
		}
		r = &record{key: key}
		c.loop.Put(key, r)
	}
	r.epoch = epoch
	started := time.Now()
	defer func() { c.metrics.reconciled(time.Since(started)) }()
	//   1. Take in the workflow and its events.
	if !mine || w.UID != r.uid {
		c.abandon(r, exists && w.UID == r.uid)
		if !mine {
			c.drop(key, r)
			return
		}
		r.uid = w.UID
		r.pods.Reset(&c.pods, key, w.UID, ownerKey(key))
	}
	c.takeVersion(r, w)
	c.loop.Deliver(key, r.uid)
	// The version may have had to wait for the answer to a status, and no later event may wake this
	// key.
	c.takeVersion(r, w)
	//   2. Step the engine.
	if r.postponed != nil {
		c.beginPostponed(r)
	}
	if r.run != nil && r.postponed == nil && !r.evaluations.interrupted {
		c.explainWaiting(r, c.Clock.Now())
		c.step(r)
	}
	//   3. Start new pods and request nodes.
	if r.run != nil && !r.evaluations.interrupted && !r.leaves {
		c.startWaiting(r)
	}
	switch {
	case r.evaluations.interrupted:
		c.giveUp(r, w)
		return
	case r.leaves:
		c.leaveToLeader(r)
		return
	}
	if r.run != nil {
		c.submit(r)
	}
	//   4. Write the status.
	c.report(r)
	//   5. Delete what is due.
	c.deleteAgain(r)
	c.collect(r)
	if r.finished() {
		c.released.ended(r, w)
		c.drop(key, r)
	}
}

// mine reports whether this manager runs the workflow.
func (c *Controller) mine(w *wf.Workflow) bool {
	return c.Settings().Selects(w.Labels) && c.Owns(w)
}

// atRest reports whether a workflow without a record needs no work now. If the workflow expires
// later, atRest schedules its key.
func (c *Controller) atRest(w *wf.Workflow) bool {
	if !w.Status.Phase.Completed() {
		return w.DeletionTimestamp != nil && !w.Guarded()
	}
	c.past.learn(w)
	if w.DeletionTimestamp != nil {
		return true
	}
	if left, expires := c.expiry(w); expires {
		if left <= 0 {
			return false
		}
		c.loop.WakeAfter(informer.KeyOf(w), left)
	}
	return !c.collectable(w)
}

func (c *Controller) drop(key types.NamespacedName, r *record) {
	c.statusSlots.leave(r)
	c.loop.Drop(key)
}

// abandon releases the resources of a workflow that was deleted or, if elsewhere is true, may
// continue under another manager. Pods whose create is in flight are garbage-collected if their
// owner no longer exists.
func (c *Controller) abandon(r *record, elsewhere bool) {
	if r.uid == "" {
		return
	}
	if elsewhere {
		c.released.left(r)
	}
	c.locks.abandon(r.key, r.uid, elsewhere)
	c.mayBegin(c.throttle.stopWaiting(r.key, r.uid))
	c.statusSlots.leave(r)
	c.releaseRun(r)
	r.uid, r.object, r.version = "", nil, ""
	r.pods.Reset(&c.pods, r.key, "", "")
}

// reset clears all state of a run.
func (r *record) reset() {
	r.run, r.spec, r.events, r.wake, r.leaves = nil, nil, nil, time.Time{}, false
	r.pauses, r.supplied, r.asking = nil, nil, nil
	r.pods.Clear()
	r.nodePods, r.leaving, r.delayed, r.waiting = nil, nil, nil, nil
	r.running, r.created, r.ran = 0, time.Time{}, time.Time{}
	r.refusal, r.objects, r.repository, r.looks = podset.Refusal{}, nil, nil, looks{}
	r.next, r.base, r.packed, r.size = statusChanges{}, nil, false, 0
	r.writing, r.lastStatusAt, r.writes, r.stuck = 0, time.Time{}, 0, false
	r.refused, r.reported = controlloop.Backoff{}, nil
	r.hasNodes, r.first, r.cost, r.extraLabels, r.extraAnnotations = false, firstNone, 0, nil, nil
	r.done, r.over = nil, overState{}
	r.looked, r.finalizer = false, false
	r.evaluations = evaluations{}
	r.postponed, r.defaults, r.stepped, r.moved = nil, nil, false, ""
	r.tells = Events{}
}

// takeVersion takes in a version of the workflow that is newer than the one last taken in or
// written. It does nothing while a status write is in flight.
func (c *Controller) takeVersion(r *record, w *wf.Workflow) {
	if r.writing != 0 || r.object != nil && !informer.Older(r.version, w.ResourceVersion) || c.waitsForNodes(r, w) {
		return
	}
	first := r.object == nil
	r.object, r.stuck = w, false
	r.setVersion(w.ResourceVersion, false)
	switch {
	case w.DeletionTimestamp != nil && !w.Guarded():
		if r.run != nil { // its pods are garbage-collected; no more are started
			c.withdraw(r)
			r.run, r.next = nil, statusChanges{}
		}
	case r.run == nil && !w.Status.Phase.Completed() && c.waitsForTemplate(w):
		r.object = nil // the next version counts as the first
	case r.run == nil && !w.Status.Phase.Completed():
		c.begin(r, w, !first)
	case r.run != nil && w.Status.Phase.Completed():
		c.endedElsewhere(r)
	case r.run != nil:
		c.takeEdits(r, w)
	}
}

// endedElsewhere ends the run of a workflow that another write has ended on the server: the answer
// to this run's write was lost, or another manager owned the workflow and this manager loaded an
// older version. The end on the server counts.
func (c *Controller) endedElsewhere(r *record) {
	c.Log.Info("a workflow was ended by another write", "workflow", r.key, "version", r.version)
	c.statusSlots.leave(r)
	c.releaseRun(r)
	c.locks.forget(r.key)
}

// begin starts the engine's run of a workflow. retried is true if the workflow was over in this
// manager before.
func (c *Controller) begin(r *record, w *wf.Workflow, retried bool) {
	r.reset()
	c.statusSlots.leave(r)
	if c.postpone(r, w, retried) {
		return
	}
	config := c.configured()
	r.tells = config.events(c.Events)
	own := *w
	own.Status = *w.Status.DeepCopy()
	own.ResourceVersion = ""
	// A SpecError condition is obsolete: the workflow and the templates it refers to can be decoded
	// now.
	own.Status.Conditions = slices.DeleteFunc(own.Status.Conditions, func(c wf.Condition) bool { return c.Type == wf.ConditionSpecError })
	if own.Status.Phase == wf.WorkflowPending && own.Status.StartedAt.IsZero() && len(own.Status.Nodes) == 0 && own.Status.CompressedNodes == "" {
		own.Status.Phase, own.Status.Message = wf.WorkflowUnknown, "" // it was postponed
	}
	specs, refusal := c.configure(r, &own, config)
	endDeleted(&own)
	nodes, err := r.nodes(&own.Status)
	if err != nil {
		c.Log.Warn("a workflow's nodes cannot be read", "workflow", r.key, "error", err)
		nodes = nil
		own.Status.Phase, own.Status.Message = wf.WorkflowError, err.Error()
	}
	r.packed = own.Status.CompressedNodes != ""
	own.Status.Nodes, own.Status.CompressedNodes = nodes, ""
	if err == nil {
		own.Status.OffloadNodeStatusVersion = ""
	}
	r.reported = r.reportedSoFar(&own.Status, nodes)
	r.nodePods, r.leaving, r.delayed = map[string]*nodePod{}, map[string]types.UID{}, map[string]engine.CreatePod{}
	r.pauses, r.supplied = map[string]bool{}, map[string]*wf.Outputs{}
	r.next.nodes = map[string]bool{}
	prepared := own.Status.Phase == wf.WorkflowUnknown && len(nodes) > 0 // by a user, for a retry
	since := own.Status.StartedAt.Time
	r.resumed = own.Status.Phase != wf.WorkflowUnknown && !retried
	if retried || prepared {
		own.Status.PersistentVolumeClaims = nil
	}
	r.run = engine.New(&own, engine.Config{
		Library: templateLibrary{c, w.Namespace}, Transient: transient, Evaluate: c.evaluate(r), Specs: specs, Defaults: config.Spec(),
	})
	if !own.Status.Phase.Completed() {
		c.resumePods(r, &own, retried, prepared, since)
		err := refusal
		if err == nil {
			err = c.prepareMetadata(r, &own)
		}
		if err != nil && !r.evaluations.interrupted {
			out := r.run.Abort(c.Clock.Now(), err.Error())
			c.act(r, &out, c.Clock.Now())
		}
		if own.Status.EstimatedDuration == 0 {
			own.Status.EstimatedDuration = c.past.of(w)
		}
	}
	c.Log.Debug("taking up", "workflow", r.key, "version", w.ResourceVersion, "nodes", len(nodes), "pods", len(r.nodePods), "retried", retried)
	r.spec = own.EffectiveSpec()
	r.wake = c.Clock.Now() // the first Step is always made
	for id, n := range nodes {
		if n.Type == wf.NodeSuspend && !n.Phase.Fulfilled() {
			r.pauses[id] = true
			if n.Outputs != nil {
				r.supplied[id] = n.Outputs
			}
		}
	}
	if own.Status.Phase.Completed() {
		r.next.fields, r.next.urgent = true, true
	}
}

// resumePods takes in the pods that exist. since is the start time in the workflow's status: pods
// created before it are left from an earlier run and are deleted, unless their node is kept.
func (c *Controller) resumePods(r *record, w *wf.Workflow, retried, prepared bool, since time.Time) {
	found := map[string]bool{}
	for _, p := range c.Informers.Pods.ByIndex(informer.PodsByController, string(w.UID)) {
		id := p.Annotations[wf.AnnotationNodeID]
		n, known := w.Status.Nodes[id]
		// Pods from before a retry are not part of it, unless their node is kept.
		left := retried || !since.IsZero() && p.CreationTimestamp.Time.Before(since.Truncate(time.Second))
		switch {
		case id == "":
		case known && n.Phase.Fulfilled():
			if !ended(p) && p.DeletionTimestamp == nil && !n.Daemon() {
				r.pods.DeletePod(podset.Deletion{Name: p.Name, UID: p.UID, Reason: "delete-pod-of-ended-node"})
			}
			r.done = append(r.done, finishedPod{name: p.Name, uid: p.UID, nodeID: id, state: doneWritten, due: n.FinishedAt.Time})
		case left:
			r.leaving[p.Name] = p.UID
			if p.DeletionTimestamp == nil {
				r.pods.DeletePod(podset.Deletion{Name: p.Name, UID: p.UID, Grace: ptr.To[int64](0), Reason: "delete-pod-before-retry"})
			}
		default:
			found[id] = true
			np := r.addPod(id, p.Name, nil)
			c.observe(r, np, p, false)
			if np.replacing { // the engine will request the pod again
				c.removePod(r, np)
				r.leaving[p.Name] = p.UID
				found[id] = false
			}
		}
	}
	// A pod that ran and is missing from the cache was deleted unobserved, or the watch is behind.
	for id, n := range w.Status.Nodes {
		if n.Type.HasPod() && n.Phase == wf.PhaseRunning && !found[id] && !retried && !prepared {
			c.lookUpPod(r, id, n.PodName(w.Name))
		}
	}
}

// takeEdits takes in the fields that a user may have changed.
func (c *Controller) takeEdits(r *record, w *wf.Workflow) {
	own := r.run.Workflow
	own.ObjectMeta = w.ObjectMeta
	own.ResourceVersion = ""
	spec := c.withDefaults(r, w)
	if w.DeletionTimestamp != nil || edited(&own.Spec, spec) {
		r.wake = c.Clock.Now()
	}
	own.Spec = *spec
	endDeleted(own)
	r.base = nil // another client wrote: the server's fields are unknown now
	if len(r.pauses) == 0 || r.moved != "" && w.Status.OffloadNodeStatusVersion == r.moved && inDatabase(w) {
		return
	}
	nodes, err := r.nodes(&w.Status)
	if err != nil {
		c.Log.Warn("a workflow's nodes were made unreadable", "workflow", r.key, "error", err)
		return
	}
	for id := range r.pauses {
		n, found := nodes[id]
		if !found {
			continue
		}
		if n.Outputs != nil {
			r.supplied[id] = n.Outputs
		}
		if n.Phase.Fulfilled() {
			r.events = append(r.events, resume(&n))
		}
	}
}

// edited reports whether the spec changed in a way that the engine has to act on.
func edited(a, b *wf.WorkflowSpec) bool {
	return a.Shutdown != b.Shutdown || ptr.Deref(a.Suspend, false) != ptr.Deref(b.Suspend, false) ||
		!ptr.Equal(a.Parallelism, b.Parallelism) || !ptr.Equal(a.ActiveDeadlineSeconds, b.ActiveDeadlineSeconds)
}

// resume returns the event for a pause that a user ended in the status.
func resume(n *wf.NodeStatus) engine.Resume {
	e := engine.Resume{NodeID: n.ID, Phase: n.Phase, Message: n.Message}
	if n.Outputs != nil {
		for _, p := range n.Outputs.Parameters {
			if p.Value != nil {
				if e.Outputs == nil {
					e.Outputs = map[string]string{}
				}
				e.Outputs[p.Name] = string(*p.Value)
			}
		}
	}
	return e
}

// stepsMax bounds the number of Steps in one reconcile.
const stepsMax = 1000

// step calls the engine's Step while there are events or a deadline is due, and carries out the
// results.
func (c *Controller) step(r *record) {
	now := c.Clock.Now()
	for range stepsMax {
		due := !r.wake.IsZero() && !r.wake.After(now)
		if len(r.events) == 0 && !due || r.run == nil || r.leaves {
			break
		}
		events := r.events
		r.events, r.wake = nil, time.Time{}
		r.evaluations.spent = 0
		out := r.run.Step(now, events...)
		if r.evaluations.interrupted {
			return
		}
		c.Log.Debug("step", "workflow", r.key, "events", len(events), "create", len(out.Create), "delete", len(out.Delete),
			"changed", len(out.Changed), "phase", r.run.Workflow.Status.Phase)
		c.act(r, &out, now)
		if r.run != nil && r.run.Workflow.Status.Phase.Completed() {
			r.next.urgent = true
			break
		}
	}
	r.stepped = true
	if r.run != nil && !r.wake.IsZero() {
		c.loop.WakeAfter(r.key, max(0, r.wake.Sub(now)))
	}
}

// act carries out the result of a Step.
func (c *Controller) act(r *record, out *engine.Result, now time.Time) {
	if r.leaves = len(out.Locks) > 0 && !c.Leads; r.leaves {
		return
	}
	r.wake = out.Wake
	s := &r.run.Workflow.Status
	if len(out.Changed) > 0 || out.Status {
		r.news(now)
		r.next.fields = r.next.fields || out.Status
	}
	for _, id := range out.Changed {
		n := s.Nodes[id]
		r.next.nodes[id] = true
		if n.Type == wf.NodeSuspend {
			r.paused(&n)
		}
	}
	c.reportEvents(r, out.Changed)
	for _, d := range out.Delete {
		c.stopPod(r, d)
	}
	c.removeEnded(r, out.Changed)
	for _, l := range out.Locks {
		r.keepWithLeader()
		c.askLocks(r, l, false)
	}
	for _, holder := range out.Unlock {
		delete(r.asking, holder)
		c.locks.release(holder)
	}
	for _, store := range out.Stores {
		c.caches.store(r, store)
	}
	for _, lookup := range out.Lookups {
		r.events = append(r.events, c.caches.lookup(r.key.Namespace, lookup))
	}
	if err := c.workflowMetrics.take(r.key.Namespace, string(r.uid), out.Samples); err != nil && r.run.MetricsError(err.Error()) {
		r.news(now)
		r.next.fields = true
	}
	r.waiting = append(r.waiting, out.Create...)
	if out.StatusFirst {
		r.news(now)
		r.next.fields, r.next.urgent, r.first = true, true, firstUnwritten
	}
}

func (r *record) news(now time.Time) {
	if r.next.empty() {
		r.next.since = now
	}
}

// paused updates r.pauses and r.supplied for a node of type Suspend.
func (r *record) paused(n *wf.NodeStatus) {
	if n.Phase.Fulfilled() {
		delete(r.pauses, n.ID)
		delete(r.supplied, n.ID)
		return
	}
	r.pauses[n.ID] = true
}

// transient reports whether a pod's error message is worth a retry under the policy
// OnTransientError.
func transient(message string) bool { return transientPattern.MatchString(message) }

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// takePod takes in a pod as the watch shows it.
func (c *Controller) takePod(r *record, p *corev1.Pod, gone bool) {
	if gone {
		c.podGone(r, p)
		return
	}
	np := r.nodePods[p.Annotations[wf.AnnotationNodeID]]
	if np == nil || np.name != p.Name || np.uid() != "" && np.uid() != p.UID || r.leaving[p.Name] == p.UID {
		return // its node has ended, or the pod is being deleted
	}
	if state := np.state(); np.uid() == "" && (state == podset.Absent || state == podset.Queued) {
		return // an earlier pod of the same name that is being deleted
	}
	c.observe(r, np, p, false)
}

// observe passes the state of a pod to the engine. A pod that its node refused before any container
// started is deleted and replaced instead.
func (c *Controller) observe(r *record, np *nodePod, p *corev1.Pod, gone bool) {
	if !gone && r.pods.Observe(np.ref(), p) == podset.Replacing {
		np.replacing = true
	}
	before := np.phase
	np.phase, np.pod = p.Status.Phase, nil
	if r.count(before, np.phase); r.running > 0 && r.ran.IsZero() {
		r.ran = c.Clock.Now()
	}
	if np.replacing {
		return
	}
	if before != corev1.PodFailed && np.phase == corev1.PodFailed && c.Settings().LogSpecs.FailedPod {
		c.logFailed(r, np)
	}
	if left := engine.LeftOver(p); len(left) > 0 && !gone && p.DeletionTimestamp == nil && p.Annotations[wf.AnnotationEnding] == "" {
		c.endInjected(r, np, p, left)
	}
	result, _ := c.Informers.TaskResults.Get(p.Namespace, np.nodeID)
	s := pods.Observe(p, result)
	s.NodeID, s.Gone = np.nodeID, gone
	if ended(p) {
		s.ResourcesDuration = resourcesDuration(p)
	}
	r.events = append(r.events, s)
}

// rejected reports whether a node refused a pod before any container started.
func rejected(p *corev1.Pod) bool {
	return cluster.RefusedByNode(p) && len(p.Status.ContainerStatuses) == 0
}

// count updates the number of running pods.
func (r *record) count(before, after corev1.PodPhase) {
	if before == corev1.PodRunning {
		r.running--
	}
	if after == corev1.PodRunning {
		r.running++
	}
}

// takeResult observes the pod of a task result again, now that its outputs are known.
func (c *Controller) takeResult(r *record, t *wf.WorkflowTaskResult) {
	np := r.nodePods[t.Name]
	if np == nil || np.replacing {
		return
	}
	if p, found := c.Informers.Pods.Get(r.key.Namespace, np.name); found && p.UID == np.uid() {
		c.observe(r, np, p, false)
	}
}

// podGone takes in the deletion of a pod.
func (c *Controller) podGone(r *record, p *corev1.Pod) {
	if r.leaving[p.Name] == p.UID {
		delete(r.leaving, p.Name)
	}
	r.pods.PodDeleted(p.UID)
	r.done = slices.DeleteFunc(r.done, func(d finishedPod) bool { return d.uid == p.UID && d.state == doneWritten })
	c.startDelayed(r, p.Name)
	np := r.nodePods[p.Annotations[wf.AnnotationNodeID]]
	switch {
	case np == nil || np.uid() != p.UID:
	case np.replacing && np.create != nil:
		c.replace(r, np)
	default:
		np.replacing = false // the engine did not request the pod in this run: its node ends
		c.observe(r, np, p, true)
		r.count(np.phase, "")
		np.phase = ""
	}
}

// replace queues the create of a node's pod again, after the earlier pod is gone.
func (c *Controller) replace(r *record, np *nodePod) {
	c.removePod(r, np)
	r.waiting = append(r.waiting, *np.create)
}

// takeUnseen takes in pods that were created and that the watch does not show although it is past
// their version: they were deleted while the watch was broken.
func (c *Controller) takeUnseen(r *record) {
	for _, x := range r.pods.Unseen() {
		switch np := x.Maker.(*nodePod); {
		case x.Pod != nil:
			c.observe(r, np, x.Pod, false)
		case np.replacing && np.create != nil:
			r.pods.PodDeleted(np.uid())
			c.replace(r, np)
		default:
			r.events = append(r.events, engine.PodState{NodeID: np.nodeID, Gone: true})
		}
	}
}
