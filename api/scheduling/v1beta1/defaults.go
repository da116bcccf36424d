package v1beta1

// ParentName returns the name of the queue's parent: spec.parent, or root if that is empty. For
// root it returns an empty name.
func (q *Queue) ParentName() string {
	if q.Name == RootQueue {
		return ""
	}
	if q.Spec.Parent == "" {
		return RootQueue
	}
	return q.Spec.Parent
}

// Accepts reports whether the queue accepts new work. A queue whose state has not been written yet
// is open.
func (q *Queue) Accepts() bool {
	return q.Status.State == "" || q.Status.State == QueueOpen
}

// CanReclaim reports whether other queues may claim back what this queue uses above its share.
func (q *Queue) CanReclaim() bool {
	return q.Spec.Reclaimable == nil || *q.Spec.Reclaimable
}

// ShareWeight returns the queue's weight, at least 1.
func (q *Queue) ShareWeight() int32 {
	return max(q.Spec.Weight, 1)
}

// QueueName returns the queue whose share the gang uses, or DefaultQueue if the gang names none.
func (g *PodGroup) QueueName() string {
	if g.Spec.Queue == "" {
		return DefaultQueue
	}
	return g.Spec.Queue
}
