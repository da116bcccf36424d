package batch

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
)

// reconcile runs one turn of one job: it applies events, decides, acts on pods and reports the
// status.
func (c *Controller) reconcile(key types.NamespacedName) {
	job, exists := c.Informers.Jobs.Get(key.Namespace, key.Name)
	r := c.record(key, exists)
	if r == nil {
		return
	}
	// 1. Take in the job and its events.
	if !exists || job.UID != r.uid {
		c.abandon(r)
		if !exists {
			c.loop.Drop(key) // Deliver may bring a Command to the job
			r.endOrder(false)
			return
		}
	}
	if !c.adopt(r, job) {
		return
	}
	c.loop.Deliver(key, r.uid)
	c.deleteAgain(r)
	c.countReady(r)
	// 2. Decide.
	facts := r.facts()
	ordered := false
	switch left := r.statuses.Left(c.Clock.Now()); {
	case job.DeletionTimestamp != nil:
		if r.ordered() != "" {
			c.refuseAction(r, r.ordered(), "the job is being deleted")
		}
		r.endOrder(true)
	case left > 0: // an action whose status cannot be written is not begun
		c.loop.WakeAfter(key, left)
	default:
		r.settleOrder()
		if facts.Action, facts.Cause = c.react(r); facts.Action == "" {
			facts.Action = r.ordered()
			ordered = facts.Action != ""
		}
	}
	step := lifecycle.Next(facts)
	switch {
	case ordered:
		changes := step.Phase != r.status.State.Phase || step.NewRun || step.Retries != r.status.RetryCount
		c.obeyed(r, facts.Action, step.Refused, changes)
	case step.Refused != "":
		c.refuseAction(r, facts.Action, step.Refused)
	}
	// A restart is recorded before the pods that caused it are deleted. Otherwise a manager that
	// takes over after a crash in between would find a job without pods that has not been
	// restarted, and would run it once more than spec.maxRetry allows.
	r.recording = r.recording || step.NewRun || step.Retries != r.status.RetryCount
	// 3. Bring the pods to the state that the step wants.
	switch {
	case job.DeletionTimestamp != nil:
		// The garbage collector deletes the pods.
		c.withdraw(r)
	case step.Pods == lifecycle.Run:
		if step.Target {
			c.restartTarget(r, facts.Action)
		}
		c.deleteSurplus(r)
		c.ask(r)
		c.pump(r)
	default:
		c.withdraw(r)
		c.deletePods(r, step.Pods)
	}
	r.unseen.Store(r.sum()[created] > 0)
	// 4. Report the result.
	if job.DeletionTimestamp == nil {
		c.report(r, step)
		c.expire(r)
	}
}

// record returns the job's record. It creates a record if the job exists and has none.
func (c *Controller) record(key types.NamespacedName, exists bool) *record {
	r := c.loop.Get(key)
	if r == nil && exists {
		r = &record{key: key}
		c.loop.Put(key, r)
	}
	return r
}

// abandon releases the resources of a job that is gone. Pods whose create is still on its way have
// an owner that no longer exists, so the garbage collector deletes them.
func (c *Controller) abandon(r *record) {
	c.withdraw(r)
	for _, t := range r.tasks {
		c.plans.Release(t.plan)
	}
	r.tasks, r.byName, r.set, r.job, r.uid, r.inflight = nil, nil, nil, nil, "", 0
	r.endOrder(false)
}

// adopt takes in the spec of a new or changed job and, for a new job, all existing pods. It reports
// whether this controller works on the job.
func (c *Controller) adopt(r *record, job *api.Job) bool {
	fresh := r.uid != job.UID
	if fresh {
		if !c.ours(job) {
			return false
		}
		r.uid, r.generation, r.status = job.UID, -1, *job.Status.DeepCopy()
		r.refusal, r.failures = nil, 0
		r.recording, r.deletions = false, nil
		r.policies = newPolicies(job, c.Clock.Now())
		r.undeleted, r.statuses = controlloop.FailedWrites[types.UID, string]{}, controlloop.Backoff{}
		r.statusSince, r.lost, r.expired = time.Time{}, false, false
		r.told.Store(nil)
		r.compared, r.conflicted = job.ResourceVersion, ""
		r.objects = map[string]*ensured{}
		r.resumed = r.status.State.Phase != "" || job.CreationTimestamp.Time.Before(c.began)
	}
	c.takeStatus(r, job)
	ranges := c.limitRanges(job.Namespace)
	tag := versions(ranges)
	if r.generation == job.Generation && r.ranges == tag {
		r.job = job
		return true
	}
	changed := r.generation != job.Generation
	r.job, r.generation, r.ranges = job, job.Generation, tag
	r.unsupported, r.holding = unsupportedFields(&job.Spec)
	r.dependent = dependent(job)
	c.compile(r, ranges)
	if fresh {
		for _, p := range c.Informers.Pods.ByIndex(informer.PodsByController, string(job.UID)) {
			c.takePod(r, p)
			if r.status.State.Phase == api.Restarting && p.Annotations[api.JobVersionKey] == strconv.Itoa(int(r.status.Version)) {
				// The restart is over: this pod belongs to the run after it, and the previous
				// manager had no time to record the new phase.
				r.status.SetPhase(api.Pending, "", "", metav1.NewTime(c.Clock.Now().Truncate(time.Second)))
			}
		}
	} else {
		// The request at the scheduler may differ from the present need.
		c.resubmit(r)
		if changed {
			r.occurred(occurrence{event: bus.JobUpdatedEvent, task: wholeJob, index: wholeTask})
		}
	}
	return true
}

// compile creates the pod templates and plans of the job's tasks.
func (c *Controller) compile(r *record, ranges []*corev1.LimitRange) {
	set, err := pods.New(r.job, pods.Options{LimitRanges: ranges, Version: r.status.Version, Retries: r.status.RetryCount})
	r.invalid, r.ignored = "", strings.Join(set.Ignored(), ", ")
	if err != nil {
		r.invalid = err.Error()
	}
	r.set = set
	all := set.Tasks()
	for len(r.tasks) < len(all) {
		r.tasks = append(r.tasks, &task{})
	}
	r.byName = make(map[string]int, len(all))
	for i := range all {
		t := r.tasks[i]
		t.pods = &all[i]
		plan := c.plans.Share(t.pods.Plan())
		t.pods.Adopt(plan)
		c.plans.Release(t.plan)
		t.plan = plan
		t.afterwards = t.afterwards || t.pods.Unbound()
		t.resize(t.pods.Replicas)
		r.byName[t.pods.Name] = i
	}
}

// ours reports whether this manager schedules the job's pods.
func (c *Controller) ours(job *api.Job) bool {
	for i := range job.Spec.Tasks {
		if len(c.SchedulerNames) > 0 && !slices.Contains(c.SchedulerNames, job.SchedulerName(i)) {
			return false
		}
	}
	return true
}

func (c *Controller) limitRanges(namespace string) []*corev1.LimitRange {
	var out []*corev1.LimitRange
	for _, l := range c.Informers.LimitRanges.List() {
		if l.Namespace == namespace {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.LimitRange) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func versions(ranges []*corev1.LimitRange) string {
	var b strings.Builder
	for _, l := range ranges {
		b.WriteString(string(l.UID) + "/" + l.ResourceVersion + " ")
	}
	return b.String()
}

// facts returns the input of the next lifecycle step.
func (r *record) facts() lifecycle.Job {
	j := lifecycle.Job{
		Phase: r.status.State.Phase, MinAvailable: r.minAvailable(), MinSuccess: r.job.Spec.MinSuccess,
		MaxRetry: r.job.Retries(), Retries: r.status.RetryCount, Waiting: r.why != nil,
		Tasks: make([]lifecycle.Task, len(r.tasks)),
	}
	for i, t := range r.tasks {
		j.Tasks[i] = lifecycle.Task{Name: t.pods.Name, Replicas: t.replicas, Min: t.pods.Min, Pods: t.seen()}
	}
	return j
}

// takePod applies the state of a pod that the watch shows.
func (c *Controller) takePod(r *record, p *corev1.Pod) {
	ti, i, ok := r.place(p)
	if !ok {
		return
	}
	t := r.tasks[ti]
	if int(i) >= len(t.units) {
		t.units = append(t.units, make([]unit, int(i)+1-len(t.units))...)
	}
	u := &t.units[i]
	if u.uid == p.UID && (u.state == leaving || u.state.ended() && p.DeletionTimestamp == nil) {
		return // only the pod's deletion can follow
	}
	s := stateOf(p)
	if s == unbound && (u.state == queued || u.state == placing) {
		u.uid = p.UID
		return // the pod is about to get its node
	}
	known := u.uid == p.UID
	if s == leaving && known && u.state.hasPod() && !u.state.ended() {
		r.evicted(ti, i, p, u.state)
	}
	u.uid, u.version = p.UID, ""
	t.set(i, s)
	u.code = codeOf(p)
	switch {
	case p.DeletionTimestamp != nil:
	case rejected(p):
		c.Log.Info("pod was refused by its node and is replaced", "job", r.key, "pod", p.Name, "node", p.Spec.NodeName,
			"reason", p.Status.Reason)
		c.deletePod(r, ti, i, ptr.To[int64](0), "replace-rejected-pod")
	case p.Spec.NodeName != "" && !s.ended() && c.nodeMissing(p.Spec.NodeName):
		r.evicted(ti, i, p, s)
		c.deletePod(r, ti, i, ptr.To[int64](0), "replace-lost-pod")
	}
}

func (c *Controller) takePodGone(r *record, p *corev1.Pod) {
	ti, i, ok := r.place(p)
	if !ok || int(i) >= len(r.tasks[ti].units) {
		return
	}
	t := r.tasks[ti]
	switch u := &t.units[i]; {
	case u.uid != p.UID:
		// An earlier pod of the same name.
	case u.state == succeeded:
		// The pod has done its work; its removal does not undo that.
	default:
		if u.state.hasPod() && !u.state.ended() {
			r.evicted(ti, i, p, u.state)
		}
		if p := r.policies; p != nil && p.waiting {
			p.gone[[2]int32{int32(ti), i}] = c.Clock.Now()
		}
		t.set(i, absent)
		if r.submitted != nil && u.state == queued {
			c.resubmit(r)
		}
	}
}

// takeUnseen looks for pods that were written but are missing from the cache, although the watch
// has passed the version of their write: they were deleted while the watch was broken.
func (c *Controller) takeUnseen(r *record) {
	seen := c.Informers.Pods.SeenVersion()
	for _, t := range r.tasks {
		if t.counts[created] == 0 {
			continue
		}
		for i := range t.units {
			u := &t.units[i]
			if u.state != created || u.version == "" || !informer.Older(u.version, seen) {
				continue
			}
			p, ok := c.Informers.Pods.Get(r.key.Namespace, t.pods.PodName(i))
			if ok && p.UID == u.uid {
				c.takePod(r, p)
			} else {
				t.set(int32(i), absent)
			}
		}
	}
}

func (c *Controller) nodeMissing(node string) bool {
	_, ok := c.Informers.Nodes.Get("", node)
	return !ok
}

func stateOf(p *corev1.Pod) unitState {
	switch {
	case p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
		return leaving
	case p.Status.Phase == corev1.PodSucceeded:
		return succeeded
	case p.Status.Phase == corev1.PodFailed:
		if p.DeletionTimestamp != nil || rejected(p) {
			return leaving
		}
		return failed
	case p.Spec.NodeName == "":
		return unbound
	case p.Status.Phase == corev1.PodRunning:
		return running
	case p.Status.Phase == corev1.PodUnknown:
		return unknown
	}
	return pending
}

// rejected reports whether a pod failed for a reason that is not the user's: the kubelet refused it
// before it started, or it was disrupted from outside.
func rejected(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodFailed {
		return false
	}
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.DisruptionTarget && cond.Status == corev1.ConditionTrue {
			return true
		}
	}
	return cluster.RefusedByNode(p)
}

// deleteSurplus deletes the pods above each task's number of replicas.
func (c *Controller) deleteSurplus(r *record) {
	for ti, t := range r.tasks {
		if t.surplus == 0 {
			continue
		}
		for i := int(t.replicas); i < len(t.units); i++ {
			switch s := t.units[i].state; {
			case s == queued:
				c.unplace(t, int32(i))
				r.stale = true
			case s.hasPod():
				c.deletePod(r, ti, int32(i), nil, "scale-down")
			}
		}
	}
}

// deletePods deletes the pods that a stopping job must not keep.
func (c *Controller) deletePods(r *record, want lifecycle.Pods) {
	for ti, t := range r.tasks {
		for i := range t.units {
			s := t.units[i].state
			if s.hasPod() && (want == lifecycle.Clear || !s.ended()) {
				c.deletePod(r, ti, int32(i), nil, "stop")
			}
		}
	}
}

// deletePod requests the deletion of a pod; the watch shows when the pod is gone.
func (c *Controller) deletePod(r *record, ti int, i int32, grace *int64, reason string) {
	t := r.tasks[ti]
	t.set(i, leaving)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, Name: t.pods.PodName(int(i)), UID: t.units[i].uid}}
	if d := (deletion{pod, grace, reason}); r.recording {
		r.deletions = append(r.deletions, d)
	} else {
		c.delete(r, d)
	}
}

// recorded deletes the pods whose deletion had to wait for the status of a restart.
func (c *Controller) recorded(r *record) {
	waiting := r.deletions
	r.recording, r.deletions = false, nil
	for _, d := range waiting {
		c.delete(r, d)
	}
}

func (c *Controller) delete(r *record, d deletion) {
	owner := r.uid
	m := apiwriter.Meta{Owner: gangKey(r.key), Reason: d.reason}
	c.Writer.Delete(m, d.pod, apiwriter.DeleteOptions{GracePeriodSeconds: d.grace}, func(err error) {
		if err == nil {
			return
		}
		c.Log.Warn("deleting a pod failed", "job", r.key, "pod", d.pod.Name, "error", err)
		c.loop.Post(r.key, owner, func(r *record) { c.notDeleted(r, d.pod.UID, d.pod.Name) })
	})
}

// notDeleted records that the deletion of an object was refused.
func (c *Controller) notDeleted(r *record, uid types.UID, name string) {
	r.undeleted.Add(c.Clock.Now(), uid, name)
}

// deleteAgain re-examines objects whose deletion was refused, once the backoff is over.
func (c *Controller) deleteAgain(r *record) {
	undeleted, left := r.undeleted.Due(c.Clock.Now())
	if left > 0 {
		c.loop.WakeAfter(r.key, left)
	}
	for uid, name := range undeleted {
		if uid == r.uid {
			r.expired = false
			continue
		}
		p, ok := c.Informers.Pods.Get(r.key.Namespace, name)
		if !ok || p.UID != uid || p.DeletionTimestamp != nil {
			continue
		}
		if ti, i, ok := r.place(p); ok && int(i) < len(r.tasks[ti].units) {
			if u := &r.tasks[ti].units[i]; u.state == leaving && u.uid == uid {
				u.uid = "" // so that takePod applies the pod anew
				c.takePod(r, p)
			}
		}
	}
}

// expire deletes a finished job after its time to live.
func (c *Controller) expire(r *record) {
	ttl := r.job.Spec.TTLSecondsAfterFinished
	if ttl == nil || !r.status.State.Phase.Finished() || r.expired {
		return
	}
	if !r.job.Status.State.Phase.Finished() {
		// Wait until the watch shows the finished status: only that version of the job is deleted,
		// not one resumed since.
		return
	}
	left := r.status.State.LastTransitionTime.Add(time.Duration(*ttl) * time.Second).Sub(c.Clock.Now())
	if left > 0 {
		c.loop.WakeAfter(r.key, left)
		return
	}
	r.expired = true
	job, uid := &api.Job{ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, Name: r.key.Name, UID: r.uid}}, r.uid
	m := apiwriter.Meta{Owner: gangKey(r.key), Reason: "job-ttl"}
	opts := apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground, Version: r.job.ResourceVersion}
	c.Writer.Delete(m, job, opts, func(err error) {
		if err != nil {
			c.Log.Warn("deleting a finished job failed", "job", r.key, "error", err)
			c.loop.Post(r.key, uid, func(r *record) { c.notDeleted(r, uid, r.key.Name) })
		}
	})
}
