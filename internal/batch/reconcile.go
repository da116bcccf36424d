package batch

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/plan"
	"lockstep.dev/lockstep/internal/unsupported"
)

// reconcile runs one turn of one job: it applies events, decides, acts on pods and reports the
// status.
func (c *Controller) reconcile(key types.NamespacedName) {
	job, exists := c.Informers.Jobs.Get(key.Namespace, key.Name)
	r := c.record(key, exists)
	if r == nil {
		return
	}
	// 1. Load the job and apply its events.
	if !exists || job.UID != r.uid {
		c.many.deleteDependents(r)
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
	left := r.statuses.Left(c.Clock.Now())
	unwritable := left > 0 || r.awaitsVersion()
	switch {
	case job.DeletionTimestamp != nil:
		if r.ordered() != "" {
			c.refuseAction(r, r.ordered(), "the job is being deleted")
		}
		r.endOrder(true)
	case unwritable: // an action whose status cannot be written is not begun
		if left > 0 {
			c.loop.WakeAfter(key, left)
		}
	default:
		r.settleOrder()
		if facts.Action, facts.Cause = c.react(r); facts.Action == "" {
			facts.Action = r.ordered()
			ordered = facts.Action != ""
		}
	}
	step := lifecycle.Next(facts)
	if unwritable && facts.Phase == api.Restarting {
		// Nor is the next run: in the phase Restarting its pods would be deleted again.
		step.Pods = lifecycle.Clear
	}
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
	if r.recording = r.recording || step.NewRun || step.Retries != r.status.RetryCount; r.recording {
		r.pods.HoldDeletions()
	}
	// 3. Bring the pods to the state that the step wants.
	switch {
	case job.DeletionTimestamp != nil:
		// The garbage collector deletes the pods: all of them later, or before the job.
		c.withdraw(r)
		if !r.emptied && slices.Contains(job.Finalizers, metav1.FinalizerDeleteDependents) {
			r.emptied = true
			c.many.deleteDependents(r)
		}
	case step.Pods == lifecycle.Run:
		if step.Target {
			c.restartTarget(r, facts.Action)
		}
		c.deleteSurplus(r)
		c.ask(r)
		c.pump(r)
		c.explainPods(r)
	default:
		c.withdraw(r)
		c.deletePods(r, step.Pods)
	}
	// 4. Report the result.
	if job.DeletionTimestamp == nil {
		c.report(r, step)
		c.expire(r)
	}
}

// record returns the job's record. If there is none, it creates one for a job that exists, and
// returns nil for a job that does not.
func (c *Controller) record(key types.NamespacedName, exists bool) *record {
	r := c.loop.Get(key)
	if r == nil && exists {
		r = &record{key: key}
		c.loop.Put(key, r)
	}
	return r
}

// abandon releases the resources of a job that was deleted. Pods whose creation is in flight have
// an owner that no longer exists, so the garbage collector deletes them.
func (c *Controller) abandon(r *record) {
	c.withdraw(r)
	for _, t := range r.tasks {
		c.plans.Release(t.Plan)
	}
	r.tasks, r.byName, r.set, r.job, r.uid = nil, nil, nil, nil, ""
	r.pods.Reset(&c.pods, r.key, "", "")
	r.endOrder(false)
}

// adopt loads the spec of a new or changed job and, for a new job, all existing pods. It reports
// whether this controller works on the job.
func (c *Controller) adopt(r *record, job *api.Job) bool {
	fresh := r.uid != job.UID
	if fresh {
		if !c.ours(job) {
			return false
		}
		r.uid, r.generation, r.status = job.UID, -1, writtenStatus(job)
		r.pods.Reset(&c.pods, r.key, job.UID, gangKey(r.key))
		r.refusal, r.recording = podset.Refusal{}, false
		r.ahead, r.notAhead = false, false
		r.most = r.status.Running + r.status.Succeeded + r.status.Failed + r.status.Unknown
		r.policies = newPolicies(job, &r.status, c.Clock.Now())
		r.statuses = controlloop.Backoff{}
		r.statusSince, r.lost, r.expired, r.emptied = time.Time{}, false, false, false
		r.lastStatus.Store(nil)
		r.compared, r.conflicted = job.ResourceVersion, ""
		r.objects = map[string]*ownedObject{}
		r.resumed = r.status.State.Phase != "" || job.CreationTimestamp.Time.Before(c.began)
	}
	c.takeStatus(r, job)
	ranges := c.limitRanges(job.Namespace)
	tag := versions(ranges)
	queue := c.queueOf(r, job, fresh)
	if r.generation == job.Generation && r.ranges == tag && r.queue == queue {
		r.job = job
		return true
	}
	changed := r.generation != job.Generation
	r.notAhead = r.notAhead && !changed
	r.job, r.generation, r.ranges, r.queue = job, job.Generation, tag, queue
	r.unsupported, r.holding = unsupported.In(job, jobNotSupported)
	r.dependent = anyTask(depends)(&job.Spec)
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
			r.occurred(jobEvent{event: bus.JobUpdatedEvent, task: wholeJob, index: wholeTask})
		}
	}
	return true
}

// queueOf returns the queue that a job is in: a job with pods stays in the queue that it does not name
// itself, while a job that waits follows its namespace. It is empty if the namespace is not known yet.
func (c *Controller) queueOf(r *record, job *api.Job, fresh bool) string {
	queue, known := c.Informers.QueueIn(job.Namespace, job.QueueName())
	switch {
	case job.QueueName() != scheduling.DefaultQueue:
	case fresh:
		for _, p := range c.Informers.Pods.ByIndex(informer.PodsByController, string(job.UID)) {
			return cmp.Or(p.Annotations[api.QueueNameKey], queue)
		}
	case r.queue != "" && r.hasPods():
		return r.queue
	}
	if !known {
		return ""
	}
	return queue
}

// compile creates the pod templates and plans of the job's tasks.
func (c *Controller) compile(r *record, ranges []*corev1.LimitRange) {
	set, err := pods.New(r.job, pods.Options{Version: r.status.Version, Retries: r.status.RetryCount, Queue: r.queue})
	r.invalid, r.ignored = "", strings.Join(set.Ignored(), ", ")
	if err != nil {
		r.invalid = err.Error()
	}
	r.set = set
	all := set.Tasks()
	for len(r.tasks) < len(all) {
		t := &task{}
		r.tasks = append(r.tasks, t)
		r.pods.Add(&t.Group)
	}
	r.byName = make(map[string]int, len(all))
	for i := range all {
		t := r.tasks[i]
		t.pods, t.Maker = &all[i], &all[i]
		shared := c.plans.Share(t.pods.Plan(ranges))
		c.plans.Release(t.Plan)
		t.Plan = shared
		t.BindLater = t.BindLater || t.pods.Unbound()
		t.Resize(t.pods.Replicas)
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
	return plan.Ranges(c.Informers.LimitRanges.List(), namespace)
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
		j.Tasks[i] = lifecycle.Task{Name: t.pods.Name, Replicas: t.Replicas, Min: t.pods.Min, Pods: t.seen()}
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
	t.Extend(i)
	slot := t.Slot(i)
	was, known := slot.State(), slot.UID() == p.UID
	change := r.pods.Observe(t.ref(int(i)), p)
	if change == podset.Nothing {
		return
	}
	now := c.pods.StateOf(p)
	if now == podset.Leaving && known && was.HasPod() && !was.Ended() {
		r.evicted(ti, i, p, was)
	}
	slot.Code = codeOf(p)
	if change == podset.Changed && p.DeletionTimestamp == nil && p.Spec.NodeName != "" && !now.Ended() && !c.nodeExists(p.Spec.NodeName) {
		r.evicted(ti, i, p, now)
		r.pods.Delete(t.ref(int(i)), new(int64), "replace-lost-pod")
	}
}

func (c *Controller) takePodGone(r *record, p *corev1.Pod) {
	ti, i, ok := r.place(p)
	if !ok || !r.tasks[ti].Has(i) {
		return
	}
	was := r.tasks[ti].Slot(i).State()
	if !r.pods.ObserveDeleted(r.tasks[ti].ref(int(i)), p.UID) {
		return
	}
	if was.HasPod() && !was.Ended() {
		r.evicted(ti, i, p, was)
	}
	if p := r.policies; p != nil && p.waiting {
		p.gone[[2]int32{int32(ti), i}] = c.Clock.Now()
	}
}

// takeUnseen looks for pods that were written but are missing from the cache, although the watch
// has passed the version of their write: they were deleted while the watch was broken.
func (c *Controller) takeUnseen(r *record) {
	for _, x := range r.pods.Unseen() {
		if x.Pod != nil {
			c.takePod(r, x.Pod)
		} else {
			r.pods.ObserveDeleted(x.Ref, x.Slot(x.Index).UID())
		}
	}
}

func (c *Controller) nodeExists(node string) bool {
	_, ok := c.Informers.Nodes.Get("", node)
	return ok
}

// rejected reports whether a pod failed for a reason that is not the user's: the kubelet refused it
// before it started, or it was disrupted from outside.
func rejected(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && (cluster.RefusedByNode(p) ||
		slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
		}))
}

// deleteSurplus deletes the pods above each task's number of replicas.
func (c *Controller) deleteSurplus(r *record) {
	for _, t := range r.tasks {
		if t.Surplus == 0 {
			continue
		}
		for i := int(t.Replicas); i < len(t.Every()); i++ {
			slot := t.Slot(int32(i))
			if slot.State() == podset.Queued {
				r.pods.Unplace(t.ref(i))
				r.stale = true
			}
			if slot.State().HasPod() {
				r.pods.Delete(t.ref(i), nil, "scale-down")
			}
		}
	}
}

// deletePods deletes the pods that a stopping job must not keep. Their run is over: no pod of it is
// created again.
func (c *Controller) deletePods(r *record, want lifecycle.Pods) {
	among := podset.Unended
	if want == lifecycle.Clear {
		among = podset.All
	}
	for _, t := range r.tasks {
		for i := range t.Every() {
			s := t.Slot(int32(i)).State()
			if s.HasPod() && (want == lifecycle.Clear || !s.Ended()) {
				r.pods.DeleteAmong(t.ref(i), among, "stop")
			}
		}
	}
	if !r.pods.Holding() {
		r.pods.ReleaseDeletions()
	}
}

// deleteAgain repeats deletions that were refused, once the backoff is over.
func (c *Controller) deleteAgain(r *record) {
	own, left := r.pods.DeleteAgain()
	if left > 0 {
		c.loop.WakeAfter(r.key, left)
	}
	r.expired = r.expired && !own
}

// keepInterval is the time between two calls of Config.Keep about one job.
const keepInterval = time.Second

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
	if c.Keep != nil && c.Keep(r.job) {
		c.loop.WakeAfter(r.key, keepInterval)
		return
	}
	r.expired = true
	job := &api.Job{ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, Name: r.key.Name, UID: r.uid}}
	r.pods.DeleteOwner(job, r.job.ResourceVersion, "job-ttl")
}
