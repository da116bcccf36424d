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
	s.ledger.SetTime(s.clock.Now())
	seen := map[string]bool{}
	set := func(q share.Queue) {
		seen[q.Name], s.queues[q.Name] = true, true
		s.ledger.SetQueue(q)
	}
	shared, sharedBy := map[string]*share.Queue{}, map[string]string{}
	for _, q := range s.cluster.Queues() {
		seen[q.Name] = true
		s.evictions.state(q.Name, q.Object)
		var queue share.Queue
		if q.Object != nil {
			queue = share.Queue{
				Name:       q.Name,
				Parent:     q.Object.Spec.Parent,
				Weight:     q.Object.ShareWeight(),
				Priority:   q.Object.Spec.Priority,
				Capability: s.evictions.stated[q.Name].capability,
				Deserved:   s.evictions.stated[q.Name].due,
				Closed:     !q.Object.Accepts(),
				FIFO:       q.Object.Spec.DequeueStrategy == schedulingv1beta1.DequeueFIFO,
			}
			queue.JobsMax, queue.JobsLimited, _ = schedulingv1beta1.JobsMax(q.Object)
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
		s.holdJobs(q.Name, q.Jobs)
		if q.SharedBy == "" {
			s.hold(q.Name, q.Name, q.Used)
		} else {
			shared[q.Name], sharedBy[q.Name] = &queue, q.SharedBy
			s.hold(q.Name, q.Name, nil)
			for user, used := range q.Users {
				set(partOf(&queue, user))
				s.hold(share.Part(q.Name, user), q.Name, used)
			}
		}
		s.remember(q.Object, &queue, set)
	}
	s.reline(sharedBy)
	for _, l := range s.pending.shapes {
		if _, user, isPart := partFrom(l.key.line); isPart {
			set(partOf(shared[l.gangs[0].gang.Queue], user))
		}
	}
	for name, h := range s.held {
		if !seen[name] {
			s.hold(name, h.queue, nil)
		}
	}
	for name := range s.jobs {
		if !seen[name] {
			s.holdJobs(name, 0)
		}
	}
	for name := range s.queues {
		if !seen[name] && !s.remembersPart(name) {
			s.evictions.state(name, nil)
			delete(s.queues, name)
			s.ledger.RemoveQueue(name)
		}
	}
}

// held is what a line of gangs holds, and its queue.
type held struct {
	queue  string
	amount place.Vector
}

// hold updates the ledger with the amounts that a line of gangs uses.
func (s *Scheduler) hold(line, queue string, used place.Vector) {
	before := s.held[line].amount
	if delta := used.Plus(before, -1); slices.ContainsFunc(delta, func(a int64) bool { return a != 0 }) {
		s.ledger.Charge(line, delta)
		s.usages.changed(queue)
	}
	if used == nil {
		delete(s.held, line)
	} else {
		s.held[line] = held{queue, used}
	}
}

// holdJobs updates the ledger with the number of jobs of a queue that have pods with nodes.
func (s *Scheduler) holdJobs(queue string, n int) {
	if delta := n - s.jobs[queue]; delta != 0 {
		s.ledger.ChargeJobs(queue, int64(delta))
	}
	if n == 0 {
		delete(s.jobs, queue)
	} else {
		s.jobs[queue] = n
	}
}
