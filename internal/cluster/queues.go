package cluster

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// Jobs is the number of jobs that have pods with nodes.
	Jobs int
	// Users is what the pods of each user hold of Used; nil unless SharedBy, which is what the queue's
	// annotation says (schedulingv1beta1.FairShareBy), is set.
	Users    map[string]place.Vector
	SharedBy string
}

// UpsertQueue stores the API server's state of a queue.
func (c *Cluster) UpsertQueue(object *schedulingv1beta1.Queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queue(object.Name)
	by, _ := schedulingv1beta1.FairShareBy(object)
	helps := q.object == nil || q.object.Generation != object.Generation || q.object.Status.State != object.Status.State
	q.object = object
	if by != q.sharedBy {
		helps = true
		q.sharedBy = by
		c.divide(q, object.Name)
	}
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
		q.object, q.sharedBy, q.namespaces = nil, "", nil
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
		out = append(out, Queue{
			Name: name, Object: q.object, Used: slices.Clone(q.used), Jobs: len(q.jobs),
			SharedBy: q.sharedBy, Users: c.usersOf(q),
		})
	}
	slices.SortFunc(out, func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// divide begins or ends to count by namespace what the pods of a queue hold.
func (c *Cluster) divide(q *queue, name string) {
	if q.namespaces = nil; q.sharedBy == "" {
		return
	}
	q.namespaces = map[string]place.Vector{}
	for _, p := range c.pods {
		if p.reserved.queue == name {
			q.chargeNamespace(p, 1)
		}
	}
}

// usersOf returns what the users of a queue hold, or nil if it is not shared.
func (c *Cluster) usersOf(q *queue) map[string]place.Vector {
	if q.sharedBy == "" {
		return nil
	}
	users := make(map[string]place.Vector, len(q.namespaces))
	for namespace, held := range q.namespaces {
		user := schedulingv1beta1.User(q.sharedBy, namespace, c.users[namespace])
		users[user] = users[user].Plus(held, 1)
	}
	return users
}

// SetUser sets whose a namespace is; empty means nobody's.
func (c *Cluster) SetUser(namespace, user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[namespace] == user {
		return
	}
	if c.users[namespace] = user; user == "" {
		delete(c.users, namespace)
	}
	c.usersVersion++
	c.changed(func(ch *Changes) { ch.Queues = true })
}

// UsersVersion returns a number that changes whenever SetUser changes whose a namespace is.
func (c *Cluster) UsersVersion() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usersVersion
}

// User returns the user that a namespace is, or belongs to, in a queue that is shared.
func (c *Cluster) User(sharedBy, namespace string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return schedulingv1beta1.User(sharedBy, namespace, c.users[namespace])
}

// charge adds the reservation of a pod to its queue (sign 1) or removes it (sign -1).
func (q *queue) charge(p *pod, sign int64) {
	r := &p.reserved
	q.used = q.used.Plus(r.request, sign)
	q.count(r.priority, int(sign))
	if r.job != "" {
		if q.jobs == nil {
			q.jobs = map[string]int{}
		}
		if q.jobs[r.job] += int(sign); q.jobs[r.job] == 0 {
			delete(q.jobs, r.job)
		}
	}
	if q.namespaces != nil {
		q.chargeNamespace(p, sign)
	}
}

func (q *queue) chargeNamespace(p *pod, sign int64) {
	held := q.namespaces[p.name.Namespace].Plus(p.reserved.request, sign)
	if slices.ContainsFunc(held, func(amount int64) bool { return amount != 0 }) {
		q.namespaces[p.name.Namespace] = held
	} else {
		delete(q.namespaces, p.name.Namespace)
	}
}

// RunsIn reports whether a job has pods with nodes that count against a queue. job is the key of its gang.
func (c *Cluster) RunsIn(queue, job string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[queue]
	return q != nil && q.jobs[job] > 0
}

// jobOf returns the key of the gang of the Job that controls a pod, or nothing if none does.
func (c *Cluster) jobOf(p *pod) string {
	owner := metav1.GetControllerOfNoCopy(p.object)
	switch {
	case owner == nil || owner.Kind != "Job" || owner.APIVersion != jobAPIVersion || !c.ours(p.object):
		return ""
	case p.reserved.job != "" && p.reserved.of != nil && p.reserved.of.UID == p.object.UID:
		return p.reserved.job
	}
	return JobPrefix + p.name.Namespace + "/" + owner.Name
}

// JobPrefix begins the keys of the gangs of Jobs: job/NAMESPACE/NAME.
const JobPrefix = "job/"

var jobAPIVersion = batchv1alpha1.GroupVersion.String()

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
