package batch

import (
	corev1 "k8s.io/api/core/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// heldBack says whether a task waits for others before it has its first pod. Once it has had one it waits no more, so that
// what it loses is replaced whatever has become of the others.
func (r *record) heldBack(ti int) bool {
	d := r.job.Spec.Tasks[ti].DependsOn
	if d == nil || len(d.Name) == 0 {
		return false
	}
	t := r.tasks[ti]
	return t.counts[absent] == t.replicas && !r.arrived(d)
}

// arrived says whether the tasks that a task waits for are there: all of them, or any.
func (r *record) arrived(d *api.DependsOn) bool {
	for _, name := range d.Name {
		ti, ok := r.byName[name]
		ready := ok && r.tasks[ti].ready >= r.tasks[ti].pods.Min
		if ready == (d.Iteration == api.IterationAny) {
			return ready
		}
	}
	return d.Iteration != api.IterationAny
}

// countReady counts the pods of the tasks that others wait for that are ready, or have succeeded.
func (c *Controller) countReady(r *record) {
	if !r.dependent {
		return
	}
	for _, t := range r.tasks {
		t.ready = t.counts[succeeded]
		for i := range t.units[:t.replicas] {
			if t.units[i].state != running {
				continue
			}
			if p, ok := c.Informers.Pods.Get(r.key.Namespace, t.pods.PodName(i)); ok && p.UID == t.units[i].uid && ready(p) {
				t.ready++
			}
		}
	}
}

// ready says whether a pod that runs is ready. The cache keeps that condition while it is not so.
func ready(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

func dependent(job *api.Job) bool {
	for i := range job.Spec.Tasks {
		if d := job.Spec.Tasks[i].DependsOn; d != nil && len(d.Name) > 0 {
			return true
		}
	}
	return false
}

// least is how many pods the gang needs now: the tasks that are held back are not part of it yet.
func (r *record) least() int32 {
	n := r.minAvailable()
	if !r.dependent {
		return n
	}
	there := int32(0)
	for ti, t := range r.tasks {
		if r.heldBack(ti) {
			n -= t.pods.Min
		} else {
			there += t.replicas
		}
	}
	return min(max(n, 1), there)
}

// leastFirst is the same for the tasks that wait for none: a gang of these, once complete, is not given up because there is no
// room for those that come later.
func (r *record) leastFirst() int32 {
	n := r.minAvailable()
	there := int32(0)
	for ti, t := range r.tasks {
		if d := r.job.Spec.Tasks[ti].DependsOn; d != nil && len(d.Name) > 0 {
			n -= t.pods.Min
		} else {
			there += t.replicas
		}
	}
	return min(max(n, 1), there)
}
