package v1beta1

// ParentName returns the queue of which this one is a part: its own, or root; empty for root itself.
func (q *Queue) ParentName() string {
	if q.Name == RootQueue {
		return ""
	}
	if q.Spec.Parent == "" {
		return RootQueue
	}
	return q.Spec.Parent
}

// Accepts says whether the queue takes new work: a queue whose state nobody has written yet is open.
func (q *Queue) Accepts() bool {
	return q.Status.State == "" || q.Status.State == QueueOpen
}

// CanReclaim says whether other queues may claim back what this one uses above its share.
func (q *Queue) CanReclaim() bool {
	return q.Spec.Reclaimable == nil || *q.Spec.Reclaimable
}

// ShareWeight returns the queue's weight, at least 1.
func (q *Queue) ShareWeight() int32 {
	return max(q.Spec.Weight, 1)
}

// QueueName returns the queue whose share the gang uses.
func (g *PodGroup) QueueName() string {
	if g.Spec.Queue == "" {
		return DefaultQueue
	}
	return g.Spec.Queue
}
