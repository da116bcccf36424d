package batch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/podset"
)

// heldBack reports whether a task waits for other tasks before it gets its first pod. A task that
// has a pod does not wait, so that its lost pods are replaced whatever the state of the other
// tasks.
func (r *record) heldBack(ti int) bool {
	spec, t := &r.job.Spec.Tasks[ti], r.tasks[ti]
	return depends(spec) && t.Counts[podset.Absent] == t.Replicas && !r.arrived(spec.DependsOn)
}

// arrived reports whether the tasks in d are ready: all of them, or any with IterationAny.
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

// countReady counts, per task, the pods that are ready or have succeeded. It does nothing if no
// task waits for others.
func (c *Controller) countReady(r *record) {
	if !r.dependent {
		return
	}
	for _, t := range r.tasks {
		t.ready = t.Counts[podset.Succeeded]
		for i, slot := range t.Slots() {
			if slot.State() != podset.Running {
				continue
			}
			if p, ok := c.Informers.Pods.Get(r.key.Namespace, t.PodName(i)); ok && p.UID == slot.UID() && ready(p) {
				t.ready++
			}
		}
	}
}

// ready reports whether a running pod is ready. The cache drops the condition Ready while it is
// true.
func ready(p *corev1.Pod) bool {
	return !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue
	})
}

// depends reports whether a task waits for other tasks.
func depends(t *api.TaskSpec) bool { return t.DependsOn != nil && len(t.DependsOn.Name) > 0 }

// least returns the number of pods that the gang needs now: tasks that are held back are not part
// of the gang yet.
func (r *record) least() int32 {
	if !r.dependent {
		return r.minAvailable()
	}
	return r.leastWithout(r.heldBack)
}

// leastFirst returns what least returns while all tasks with dependencies are held back. A gang of
// the other tasks, once complete, is not rolled back for lack of room for the dependent ones.
func (r *record) leastFirst() int32 {
	return r.leastWithout(func(ti int) bool { return depends(&r.job.Spec.Tasks[ti]) })
}

// leastWithout returns the number of pods that the gang needs without some of its tasks.
func (r *record) leastWithout(task func(int) bool) int32 {
	n, there := r.minAvailable(), int32(0)
	for ti, t := range r.tasks {
		if task(ti) {
			n -= t.pods.Min
		} else {
			there += t.Replicas
		}
	}
	return min(max(n, 1), there)
}
