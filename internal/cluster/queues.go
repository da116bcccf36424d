package cluster

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Queue is a queue and the resources that its pods hold.
type Queue struct {
	Name string
	// Object is nil if pods name a queue that does not exist.
	Object *schedulingv1beta1.Queue
	Used   place.Vector
}

// UpsertQueue stores the API server's state of a queue.
func (c *Cluster) UpsertQueue(object *schedulingv1beta1.Queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queue(object.Name)
	helps := q.object == nil || q.object.Generation != object.Generation || q.object.Status.State != object.Status.State
	q.object = object
	if helps {
		c.changed(func(ch *Changes) { ch.Queues = true })
	}
}

// DeleteQueue removes a queue. The use of its pods stays counted, in case a queue with the same
// name appears.
func (c *Cluster) DeleteQueue(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.queues[name]; q != nil {
		q.object = nil
		c.dropQueueIfUnused(name)
		c.changed(func(ch *Changes) { ch.Queues = true })
	}
}

// Queues returns all queues, sorted by name.
func (c *Cluster) Queues() []Queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Queue, 0, len(c.queues))
	for name, q := range c.queues {
		out = append(out, Queue{Name: name, Object: q.object, Used: slices.Clone(q.used)})
	}
	slices.SortFunc(out, func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// QueueOf returns the queue that the pod's own annotations name, or an empty name.
func QueueOf(pod *corev1.Pod) string {
	if q := pod.Annotations[schedulingv1beta1.QueueNameAnnotation]; q != "" {
		return q
	}
	return pod.Annotations[batchv1alpha1.QueueNameKey]
}

func (c *Cluster) queue(name string) *queue {
	q := c.queues[name]
	if q == nil {
		q = &queue{pods: map[int32]int{}}
		c.queues[name] = q
	}
	return q
}

func (c *Cluster) dropQueueIfUnused(name string) {
	q := c.queues[name]
	if q.object == nil && !slices.ContainsFunc(q.used, func(amount int64) bool { return amount != 0 }) {
		delete(c.queues, name)
	}
}
