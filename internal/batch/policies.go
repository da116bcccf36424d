package batch

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/podset"
)

// Policies are evaluated on the present state where possible: a pod that failed still counts as
// failed after a restart of the manager. Events that leave no trace in the state, an eviction and a
// change of the spec, are recorded when they are seen.

// jobEvent is an event to which policies react. Its task is wholeJob if it concerns no single
// task, and its index is wholeTask if it concerns no single pod.
type jobEvent struct {
	event       bus.Event
	task, index int32
	exit        int32 // exit code of a failed pod
	free        bool  // the scheduler evicted the pod: a restart does not count as a retry
}

const (
	wholeJob  = -1
	wholeTask = -1
)

// delayedPolicy is the reaction of a policy with a timeout, which happens only if the cause persists
// until due.
type delayedPolicy struct {
	jobEvent
	policy *api.LifecyclePolicy
	due    time.Time
}

// policies is the in-memory state of a job's policies. It is nil for a job without policies.
type policies struct {
	seen     []jobEvent // since the last turn
	deferred []delayedPolicy
	// waiting means that some policy reacts to pods that wait. In that case since is when the job
	// began to wait, gone is when each lost pod was deleted, by task and index, acted is when a
	// policy last acted on a pod that waits, and look is when the next pod may have waited for long
	// enough.
	waiting bool
	since   time.Time
	gone    map[[2]int32]time.Time
	acted   time.Time
	look    time.Time
	// restarts means that some policy reacts to restarts of containers.
	restarts bool
	// target is the event to which the current policy action belongs.
	target jobEvent
}

func newPolicies(job *api.Job, status *api.JobStatus, now time.Time) *policies {
	p := &policies{since: now, gone: map[[2]int32]time.Time{}}
	switch status.State.Phase {
	case "":
		p.since = job.CreationTimestamp.Time
	case api.Pending:
		p.since = status.State.LastTransitionTime.Time
	}
	found := len(job.Spec.Policies) > 0
	for i := range job.Spec.Tasks {
		t := &job.Spec.Tasks[i]
		found = found || len(t.Policies) > 0
		p.waiting = p.waiting || lifecycle.React(t.Policies, job.Spec.Policies, bus.PodPendingEvent, 0) != nil
		p.restarts = p.restarts || lifecycle.React(t.Policies, job.Spec.Policies, bus.TaskFailedEvent, 0) != nil
	}
	if !found {
		return nil
	}
	return p
}

// reactsToEvictions reports whether a policy acts when a pod is evicted. Then pods of the job do not leave
// for others of the job, because the policy would restart more than the place is worth.
func reactsToEvictions(s *api.JobSpec) bool {
	return slices.ContainsFunc(s.Tasks, func(t api.TaskSpec) bool {
		return lifecycle.React(t.Policies, s.Policies, bus.PodEvictedEvent, 0) != nil
	})
}

// occurred records an event that leaves no trace in the state.
func (r *record) occurred(o jobEvent) {
	if r.policies != nil {
		r.policies.seen = append(r.policies.seen, o)
	}
}

// evicted records that another client removed a pod. If the pod failed because of the eviction and
// no policy covers evictions, it counts as failed. A pod that a node refused before it started is
// simply replaced, without an event.
func (r *record) evicted(ti int, i int32, p *corev1.Pod, was podset.State) {
	if r.policies == nil || i >= r.tasks[ti].Replicas || was != podset.Running && cluster.RefusedByNode(p) {
		return
	}
	o := jobEvent{event: bus.PodEvictedEvent, task: int32(ti), index: i}
	if p.Status.Phase == corev1.PodFailed && r.policyOn(o) == nil {
		o.event, o.exit = bus.PodFailedEvent, codeOf(p)
	}
	r.occurred(o)
}

// react returns the action of the policy that applies now, if any. It ignores policies while a
// Command waits to be carried out.
func (c *Controller) react(r *record) (bus.Action, lifecycle.Cause) {
	p := r.policies
	if p == nil {
		return "", lifecycle.Cause{}
	}
	seen := p.seen
	p.seen = nil
	if phase := r.status.State.Phase; phase != "" && phase != api.Pending && phase != api.Running || r.ordered() != "" {
		p.deferred, p.since, p.look = nil, c.Clock.Now(), time.Time{}
		clear(p.gone)
		return "", lifecycle.Cause{}
	}
	now := c.Clock.Now()
	all := append(r.presentEvents(), seen...)
	if p.waiting {
		if !p.look.After(now) {
			all = append(all, c.waitedTooLong(r, now)...)
		}
		c.loop.WakeAfter(r.key, p.look.Sub(now))
	}
	p.deferred = slices.DeleteFunc(p.deferred, func(d delayedPolicy) bool { return !r.persists(d.jobEvent) })
	for _, o := range all {
		policy := r.policyOn(o)
		switch {
		case policy == nil:
		case policy.Timeout == nil || policy.Timeout.Duration <= 0 || o.event == bus.PodPendingEvent:
			return c.act(r, o, policy)
		default:
			p.postpone(delayedPolicy{o, policy, now.Add(policy.Timeout.Duration)})
		}
	}
	for _, d := range p.deferred {
		if !d.due.After(now) {
			return c.act(r, d.jobEvent, d.policy)
		}
		c.loop.WakeAfter(r.key, d.due.Sub(now))
	}
	return "", lifecycle.Cause{}
}

// act returns the policy's action. Other deferred reactions are dropped, because the action may
// cure their causes.
func (c *Controller) act(r *record, o jobEvent, policy *api.LifecyclePolicy) (bus.Action, lifecycle.Cause) {
	p := r.policies
	p.target, p.deferred = o, nil
	if o.event == bus.PodPendingEvent { // every pod begins to wait anew
		p.acted, p.look = c.Clock.Now(), time.Time{}
	}
	cause := lifecycle.Cause{Event: o.event, Message: r.describe(o), Free: o.free}
	if policy.Action != bus.CompleteJobAction { // the final status records CompleteJob
		c.Writer.Event(r.job, corev1.EventTypeNormal, eventAction, string(policy.Action)+": "+cause.Message)
	}
	return policy.Action, cause
}

func (p *policies) postpone(d delayedPolicy) {
	if !slices.ContainsFunc(p.deferred, func(have delayedPolicy) bool { return have.jobEvent == d.jobEvent }) {
		p.deferred = append(p.deferred, d)
	}
}

func (r *record) policyOn(o jobEvent) *api.LifecyclePolicy {
	var own api.LifecyclePolicies
	if o.task != wholeJob {
		own = r.job.Spec.Tasks[o.task].Policies
	}
	return lifecycle.React(own, r.job.Spec.Policies, o.event, o.exit)
}

// presentEvents returns the events that the present state of the pods shows. Completion of a
// task comes first, because the action it causes may make other pods fail.
func (r *record) presentEvents() []jobEvent {
	var out []jobEvent
	for ti, t := range r.tasks {
		if t.Replicas > 0 && t.Counts[podset.Succeeded] >= t.Replicas {
			out = append(out, jobEvent{event: bus.TaskCompletedEvent, task: int32(ti), index: wholeTask})
		}
	}
	for ti, t := range r.tasks {
		if r.policies.restarts && r.job.Spec.Tasks[ti].FailsAfter(t.restarts()) {
			out = append(out, jobEvent{event: bus.TaskFailedEvent, task: int32(ti), index: wholeTask})
		}
		if t.Counts[podset.Failed] == 0 {
			continue
		}
		for i, slot := range t.Slots() {
			if slot.State() == podset.Failed {
				out = append(out, jobEvent{event: bus.PodFailedEvent, task: int32(ti), index: int32(i), exit: slot.Code})
			}
		}
	}
	if r.broken() {
		out = append(out, jobEvent{event: bus.JobUnknownEvent, task: wholeJob, index: wholeTask})
	}
	return out
}

// broken reports whether a part of the gang runs and there is no room for the rest.
func (r *record) broken() bool {
	sum := r.pods.Sum()
	started := sum[podset.Running] + sum[podset.Succeeded] + sum[podset.Failed]
	return r.status.State.Phase == api.Running && r.why != nil && started > 0 && started < r.minAvailable()
}

// restarts returns the number of container restarts in the task's pods.
func (t *task) restarts() int32 {
	n := int32(0)
	for _, slot := range t.Slots() {
		if slot.State() == podset.Pending || slot.State() == podset.Running {
			n += slot.Code
		}
	}
	return n
}

// persists reports whether the cause of a deferred reaction still exists.
func (r *record) persists(o jobEvent) bool {
	if o.task == wholeJob {
		return o.event != bus.JobUnknownEvent || r.broken()
	}
	t := r.tasks[o.task]
	switch o.event {
	case bus.PodFailedEvent:
		return o.index < t.Replicas && t.Slot(o.index).State() == podset.Failed
	case bus.PodEvictedEvent:
		if o.index >= t.Replicas {
			return false
		}
		state := t.Slot(o.index).State()
		return state != podset.Running && !state.Ended()
	case bus.TaskCompletedEvent:
		return t.Counts[podset.Succeeded] >= t.Replicas
	case bus.TaskFailedEvent:
		return r.job.Spec.Tasks[o.task].FailsAfter(t.restarts())
	}
	return true
}

// waitedTooLong returns the first pod, existing or missing, that has not run for as long as a
// policy allows. If there is none, it sets look to the earliest time at which a pod can have waited
// for long enough.
func (c *Controller) waitedTooLong(r *record, now time.Time) []jobEvent {
	p := r.policies
	next := time.Time{}
	for ti, t := range r.tasks {
		o := jobEvent{event: bus.PodPendingEvent, task: int32(ti), index: wholeTask}
		policy := r.policyOn(o)
		if policy == nil {
			continue
		}
		limit := policy.Timeout.Duration
		oldest := now // a pod that begins to wait now cannot exceed the limit before now+limit
		for i, slot := range t.Slots() {
			if slot.State() >= podset.Running || r.heldBack(ti) {
				continue
			}
			since := p.since
			if pod, ok := c.Informers.Pods.Get(r.key.Namespace, t.PodName(i)); ok && pod.UID == slot.UID() {
				since = pod.CreationTimestamp.Time
			} else if gone, ok := p.gone[[2]int32{o.task, int32(i)}]; ok {
				since = gone
			}
			if since.Before(p.acted) {
				since = p.acted
			}
			if !since.Add(limit).After(now) {
				o.index = int32(i)
				return []jobEvent{o}
			}
			oldest = earlier(oldest, since)
		}
		if at := oldest.Add(limit); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	p.look = next
	return nil
}

// describe returns a description of the event for users.
func (r *record) describe(o jobEvent) string {
	name := ""
	if o.task != wholeJob {
		name = "task " + r.tasks[o.task].pods.Name
		if o.index != wholeTask {
			name = "pod " + r.tasks[o.task].PodName(int(o.index))
		}
	}
	switch o.event {
	case bus.TaskCompletedEvent:
		return name + " has completed"
	case bus.TaskFailedEvent:
		return name + ": its containers were restarted too often (maxRetry)"
	case bus.PodFailedEvent:
		return fmt.Sprintf("%s failed with exit code %d", name, o.exit)
	case bus.PodEvictedEvent:
		return name + " was evicted"
	case bus.PodPendingEvent:
		return name + " did not run in time"
	case bus.JobUnknownEvent:
		return "a part of the job runs, and there is no room for the rest"
	}
	return "the job was changed"
}

// restartTarget deletes the pods that a policy restarts, so that they are created again.
func (c *Controller) restartTarget(r *record, action bus.Action) {
	o := r.policies.target
	for ti, t := range r.tasks {
		if o.task != wholeJob && int32(ti) != o.task {
			continue
		}
		for i := range t.Every() {
			size := partOf(action, &r.job.Spec.Tasks[ti])
			if o.index != wholeTask && size > 0 && int32(i)/size != o.index/size {
				continue
			}
			if t.Slot(int32(i)).State().HasPod() {
				r.pods.Delete(t.ref(i), nil, "policy-restart")
			}
		}
	}
}

// partOf returns how many neighbouring pods are restarted together, or 0 for all pods of the task.
func partOf(action bus.Action, t *api.TaskSpec) int32 {
	switch {
	case action == bus.RestartPodAction:
		return 1
	case action == bus.RestartPartitionAction && t.PartitionPolicy != nil:
		return t.PartitionPolicy.PartitionSize
	}
	return 0
}

// codeOf returns the number by which policies judge a pod: the restart count of its containers or,
// once the pod has failed, the exit code of its first container.
func codeOf(p *corev1.Pod) int32 {
	if p.Status.Phase == corev1.PodFailed {
		if len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Terminated != nil {
			return p.Status.ContainerStatuses[0].State.Terminated.ExitCode
		}
		return 0
	}
	n := int32(0)
	for _, list := range [...][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			n += list[i].RestartCount
		}
	}
	return n
}
