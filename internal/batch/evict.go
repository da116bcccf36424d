package batch

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/scheduler"
)

var _ scheduler.Evictor = (*Controller)(nil)

const gangPrefix = cluster.JobPrefix

// Owns implements scheduler.Evictor.
func (c *Controller) Owns(gang string) bool { return strings.HasPrefix(gang, gangPrefix) }

// GangOf implements scheduler.Evictor.
func (c *Controller) GangOf(p *corev1.Pod) (string, bool) {
	owner := jobOf(p)
	if owner == nil {
		return "", false
	}
	return gangKey(types.NamespacedName{Namespace: p.Namespace, Name: owner.Name}), true
}

// jobOfGang is the inverse of gangKey.
func jobOfGang(gang string) types.NamespacedName {
	namespace, name, _ := strings.Cut(strings.TrimPrefix(gang, gangPrefix), "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// Describe implements scheduler.Evictor.
func (c *Controller) Describe(gang string) (scheduler.GangTerms, bool) {
	key := jobOfGang(gang)
	job, exists := c.Informers.Jobs.Get(key.Namespace, key.Name)
	if !exists || job.DeletionTimestamp != nil {
		return scheduler.GangTerms{}, false
	}
	ended, sum := map[string]int{}, 0
	for _, p := range c.Informers.Pods.ByIndex(informer.PodsByController, string(job.UID)) {
		if c.pods.StateOf(p).Ended() {
			ended[p.Annotations[api.TaskSpecKey]]++
			sum++
		}
	}
	t := scheduler.TermsOf(job)
	t.Priority, _ = c.Model.Priority(job.Spec.PriorityClassName)
	t.Min = make(map[string]int, len(job.Spec.Tasks))
	replicas, least := 0, 0
	for i := range job.Spec.Tasks {
		task, name := &job.Spec.Tasks[i], job.TaskName(i)
		n := int(min(task.Min(), task.Replicas))
		replicas += int(task.Replicas)
		least += n
		t.Min[name] = max(0, n-ended[name])
	}
	all := min(int(job.MinAvailable()), replicas)
	if all < least { // see tasksMatter
		t.Min = nil
	}
	t.MinMember = max(0, all-sum)
	t.Pods = max(0, replicas-sum)
	return t, true
}

// Evict implements scheduler.Evictor.
func (c *Controller) Evict(x scheduler.Eviction) {
	c.loop.Post(jobOfGang(x.Gang), controlloop.Anyone, func(r *record) { c.evict(r, x) })
}

// evict deletes pods, with their own grace period and whatever PodDisruptionBudgets say: the plan
// has taken them into account, and half of it would help nobody. The job gets the event PodEvicted, and
// a policy's restart because of it does not count as a retry.
func (c *Controller) evict(r *record, x scheduler.Eviction) {
	n := 0
	for _, ref := range x.Pods {
		p, exists := c.Informers.Pods.Get(ref.Name.Namespace, ref.Name.Name)
		if !exists || p.UID != ref.UID {
			continue
		}
		ti, i, ok := r.place(p)
		if !ok || !r.tasks[ti].Has(i) {
			continue
		}
		t := r.tasks[ti]
		if slot := t.Slot(i); slot.UID() != ref.UID || !slot.State().HasPod() || slot.State().Ended() {
			continue
		}
		if i < t.Replicas {
			r.occurred(jobEvent{event: bus.PodEvictedEvent, task: int32(ti), index: i, free: true})
		}
		r.pods.Delete(t.ref(int(i)), nil, "evict")
		n++
	}
	if n == 0 {
		return
	}
	what := scheduler.Pods(n)
	switch {
	case x.Whole:
		what = "the whole job, " + what
	case x.For != "":
		what += " above the minimum"
	}
	message := fmt.Sprintf("%s evicted%s: the job %s", what, x.Claimant(r.key.Namespace), x.Why)
	c.Writer.Event(r.job, corev1.EventTypeNormal, "Evicted", message)
}

// alive reports whether a pod of the job has a node and has not ended. A job without such pods gets
// nodes for its whole gang or none, even if it ran before.
func (r *record) alive() bool {
	sum := r.pods.Sum()
	return sum.Held() > sum[podset.Succeeded]+sum[podset.Failed]
}
