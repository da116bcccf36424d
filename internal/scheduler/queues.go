package scheduler

import (
	"slices"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// updateQueues updates the ledger with the queues and the amounts that they use.
func (s *Scheduler) updateQueues() {
	s.ledger.SetTotal(s.cluster.Total())
	seen := map[string]bool{}
	set := func(q share.Queue) {
		seen[q.Name], s.queues[q.Name] = true, true
		s.ledger.SetQueue(q)
	}
	for _, q := range s.cluster.Queues() {
		seen[q.Name] = true
		s.evictions.state(q.Name, q.Object)
		if q.Object != nil {
			queue := share.Queue{
				Name:       q.Name,
				Parent:     q.Object.Spec.Parent,
				Weight:     q.Object.ShareWeight(),
				Priority:   q.Object.Spec.Priority,
				Capability: s.evictions.stated[q.Name].capability,
				Deserved:   s.evictions.stated[q.Name].due,
				Closed:     !q.Object.Accepts(),
				FIFO:       q.Object.Spec.DequeueStrategy == schedulingv1beta1.DequeueFIFO,
			}
			for _, group := range inHierarchy(q.Object, &queue) {
				if !seen[group.Name] { // queues are in the order of their names: the first one says the weight
					set(group)
				}
			}
			set(queue)
		} else if s.queues[q.Name] {
			delete(s.queues, q.Name)
			s.ledger.RemoveQueue(q.Name)
		}
		s.hold(q.Name, q.Used)
	}
	for name := range s.held {
		if !seen[name] {
			s.hold(name, nil)
		}
	}
	for name := range s.queues {
		if !seen[name] {
			s.evictions.state(name, nil)
			delete(s.queues, name)
			s.ledger.RemoveQueue(name)
		}
	}
}

// hold updates the ledger with the amounts that a queue uses.
func (s *Scheduler) hold(queue string, used place.Vector) {
	before := s.held[queue]
	if delta := used.Plus(before, -1); slices.ContainsFunc(delta, func(a int64) bool { return a != 0 }) {
		s.ledger.Charge(queue, delta)
	}
	if used == nil {
		delete(s.held, queue)
	} else {
		s.held[queue] = used
	}
}
