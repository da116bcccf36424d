package v1beta1

// Accepts reports whether the queue accepts new work. A queue whose state has not been written yet
// is open.
func (q *Queue) Accepts() bool {
	return q.Status.State == "" || q.Status.State == QueueOpen
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
