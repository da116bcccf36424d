package batch

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/batch/lifecycle"
	"lockstep.dev/lockstep/internal/cluster"
)

// Policies are read off what is the case, where that is possible: a pod that failed has failed also after a restart of the
// manager. What leaves no trace, an eviction and a change of the spec, is an occurrence: it counts if it was seen.

// occurrence is something that policies react to. Its task is wholeJob where it is about no task, its index wholeTask where
// it is about no pod.
type occurrence struct {
	event       bus.Event
	task, index int32
	exit        int32 // of a pod that failed
}

const (
	wholeJob  = -1
	wholeTask = -1
)

// deferred is a policy with a timeout, for what has not ended by itself yet.
type deferred struct {
	occurrence
	policy *api.LifecyclePolicy
	due    time.Time
}

// policies is what a record knows for the sake of its job's policies; nil in a job without any.
type policies struct {
	seen     []occurrence // since the last turn
	deferred []deferred
	// waiting says that some policy is about pods that wait. Then since is when the job began to, gone when pods that it
	// had went, and look when the next of them may have waited for long enough.
	waiting bool
	since   time.Time
	gone    map[[2]int32]time.Time
	look    time.Time
	// restarts says that some policy is about restarts of containers.
	restarts bool
	// target is what the policy that acts now is about.
	target occurrence
}

func newPolicies(job *api.Job, now time.Time) *policies {
	p := &policies{since: now, gone: map[[2]int32]time.Time{}}
	switch job.Status.State.Phase {
	case "":
		p.since = job.CreationTimestamp.Time
	case api.Pending:
		p.since = job.Status.State.LastTransitionTime.Time
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

// occurred notes what leaves no trace.
func (r *record) occurred(o occurrence) {
	if r.policies != nil {
		r.policies.seen = append(r.policies.seen, o)
	}
}

// evicted notes that a pod was taken away by someone else. One that failed by it is, to policies that say nothing of
// evictions, one that failed. That a node refused a pod before it started is nobody's affair: it is made again.
func (r *record) evicted(ti int, i int32, p *corev1.Pod, was unitState) {
	if r.policies == nil || i >= r.tasks[ti].replicas || was != running && cluster.RefusedByNode(p) {
		return
	}
	o := occurrence{event: bus.PodEvictedEvent, task: int32(ti), index: i}
	if p.Status.Phase == corev1.PodFailed && r.policyOn(o) == nil {
		o.event, o.exit = bus.PodFailedEvent, codeOf(p)
	}
	r.occurred(o)
}

// react looks for a policy to act on, unless a Command is to be carried out anyway.
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
	all := append(r.occurrences(), seen...)
	if p.waiting {
		if !p.look.After(now) {
			all = append(all, c.waitedTooLong(r, now)...)
		}
		c.loop.WakeAfter(r.key, p.look.Sub(now))
	}
	p.keep(func(d *deferred) bool { return r.persists(d.occurrence) })
	for _, o := range all {
		policy := r.policyOn(o)
		switch {
		case policy == nil:
		case policy.Timeout == nil || policy.Timeout.Duration <= 0 || o.event == bus.PodPendingEvent:
			return c.act(r, o, policy)
		default:
			p.postpone(deferred{o, policy, now.Add(policy.Timeout.Duration)})
		}
	}
	for _, d := range p.deferred {
		if !d.due.After(now) {
			return c.act(r, d.occurrence, d.policy)
		}
		c.loop.WakeAfter(r.key, d.due.Sub(now))
	}
	return "", lifecycle.Cause{}
}

// act is what the policy asks for. What else was to be done later is not, as it may have been cured.
func (c *Controller) act(r *record, o occurrence, policy *api.LifecyclePolicy) (bus.Action, lifecycle.Cause) {
	p := r.policies
	p.target, p.deferred = o, nil
	if o.event == bus.PodPendingEvent { // it waits anew
		p.since, p.look = c.Clock.Now(), time.Time{}
		clear(p.gone)
	}
	cause := lifecycle.Cause{Event: o.event, Message: r.describe(o)}
	if policy.Action != bus.CompleteJobAction { // which the status says for good
		c.Writer.Event(r.job, corev1.EventTypeNormal, string(policy.Action), cause.Message)
	}
	return policy.Action, cause
}

func (p *policies) postpone(d deferred) {
	for _, have := range p.deferred {
		if have.occurrence == d.occurrence {
			return
		}
	}
	p.deferred = append(p.deferred, d)
}

func (p *policies) keep(wanted func(*deferred) bool) {
	kept := p.deferred[:0]
	for i := range p.deferred {
		if wanted(&p.deferred[i]) {
			kept = append(kept, p.deferred[i])
		}
	}
	p.deferred = kept
}

func (r *record) policyOn(o occurrence) *api.LifecyclePolicy {
	var own api.LifecyclePolicies
	if o.task != wholeJob {
		own = r.job.Spec.Tasks[o.task].Policies
	}
	return lifecycle.React(own, r.job.Spec.Policies, o.event, o.exit)
}

// occurrences are what can be told from the pods as they are. Completion comes first: what it ends may fail.
func (r *record) occurrences() []occurrence {
	var out []occurrence
	for ti, t := range r.tasks {
		if t.replicas > 0 && t.counts[succeeded] >= t.replicas {
			out = append(out, occurrence{event: bus.TaskCompletedEvent, task: int32(ti), index: wholeTask})
		}
	}
	for ti, t := range r.tasks {
		if r.policies.restarts && t.restarts() > 0 && t.restarts() >= r.job.Spec.Tasks[ti].Retries() {
			out = append(out, occurrence{event: bus.TaskFailedEvent, task: int32(ti), index: wholeTask})
		}
		if t.counts[failed] == 0 {
			continue
		}
		for i := range t.units[:t.replicas] {
			if u := &t.units[i]; u.state == failed {
				out = append(out, occurrence{bus.PodFailedEvent, int32(ti), int32(i), u.code})
			}
		}
	}
	if r.broken() {
		out = append(out, occurrence{event: bus.JobUnknownEvent, task: wholeJob, index: wholeTask})
	}
	return out
}

// broken says whether a part of the gang runs and there is no room for the rest.
func (r *record) broken() bool {
	started := r.sum()[running] + r.sum()[succeeded] + r.sum()[failed]
	return r.status.State.Phase == api.Running && r.why != nil && started > 0 && started < r.minAvailable()
}

// restarts is how often containers of the task's pods were restarted.
func (t *task) restarts() int32 {
	n := int32(0)
	for i := range t.units[:t.replicas] {
		if u := &t.units[i]; u.state == pending || u.state == running {
			n += u.code
		}
	}
	return n
}

// persists says whether what a policy waits about is still so.
func (r *record) persists(o occurrence) bool {
	if o.task == wholeJob {
		return o.event != bus.JobUnknownEvent || r.broken()
	}
	t := r.tasks[o.task]
	switch o.event {
	case bus.PodFailedEvent:
		return o.index < t.replicas && t.units[o.index].state == failed
	case bus.PodEvictedEvent:
		return o.index < t.replicas && t.units[o.index].state != running && !t.units[o.index].state.ended()
	case bus.TaskCompletedEvent:
		return t.counts[succeeded] >= t.replicas
	case bus.TaskFailedEvent:
		return t.restarts() >= r.job.Spec.Tasks[o.task].Retries()
	}
	return true
}

// waitedTooLong are the pods, or places for pods, that have not run for as long as a policy allows. It sets when to look
// again: not before another can have waited for long enough.
func (c *Controller) waitedTooLong(r *record, now time.Time) []occurrence {
	p := r.policies
	next := time.Time{}
	for ti, t := range r.tasks {
		o := occurrence{event: bus.PodPendingEvent, task: int32(ti), index: wholeTask}
		policy := r.policyOn(o)
		if policy == nil {
			continue
		}
		limit := policy.Timeout.Duration
		oldest := now // who begins to wait later cannot have waited for too long before this has
		for i := range t.units[:t.replicas] {
			if t.units[i].state >= running || r.heldBack(ti) {
				continue
			}
			since := p.since
			if pod, ok := c.Informers.Pods.Get(r.key.Namespace, t.pods.PodName(i)); ok && pod.UID == t.units[i].uid {
				since = pod.CreationTimestamp.Time
			} else if gone, ok := p.gone[[2]int32{o.task, int32(i)}]; ok {
				since = gone
			}
			if !since.Add(limit).After(now) {
				o.index = int32(i)
				return []occurrence{o}
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

// describe says what happened, for people.
func (r *record) describe(o occurrence) string {
	name := ""
	if o.task != wholeJob {
		name = "task " + r.tasks[o.task].pods.Name
		if o.index != wholeTask {
			name = "pod " + r.tasks[o.task].pods.PodName(int(o.index))
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

// restartTarget deletes the pods that a policy restarts, so that they are made again.
func (c *Controller) restartTarget(r *record, action bus.Action) {
	o := r.policies.target
	for ti, t := range r.tasks {
		if o.task != wholeJob && int32(ti) != o.task {
			continue
		}
		for i := range t.units {
			size := partOf(action, &r.job.Spec.Tasks[ti])
			if o.index != wholeTask && size > 0 && int32(i)/size != o.index/size {
				continue
			}
			if t.units[i].state.hasPod() {
				c.deletePod(r, ti, int32(i), nil, "policy-restart")
			}
		}
	}
}

// partOf is how many neighbouring pods are restarted together, or 0 for all of the task.
func partOf(action bus.Action, t *api.TaskSpec) int32 {
	switch {
	case action == bus.RestartPodAction:
		return 1
	case action == bus.RestartPartitionAction && t.PartitionPolicy != nil:
		return t.PartitionPolicy.PartitionSize
	}
	return 0
}

// codeOf is what a policy may ask of a pod: how often its containers were restarted, or once it has failed the exit code of
// the first of them.
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
