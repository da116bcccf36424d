package share

import (
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Figures are the amounts of a queue, including the queues below.
type Figures struct {
	Held, Pending, Deserved place.Vector
	// Share is the largest fraction, over all resources, of its deserved amounts that the queue
	// holds. Queues with a Share of 1 or more are served after queues below 1.
	Share float64
}

// Figures returns the amounts of a queue, or zero values for an unknown queue.
func (l *Ledger) Figures(name string) Figures {
	l.settle()
	q := l.queues[name]
	if q == nil {
		return Figures{}
	}
	return Figures{
		Held: slices.Clone(q.sum.held), Pending: slices.Clone(q.sum.pending), Deserved: slices.Clone(q.deserved),
		Share: q.share,
	}
}

// Len returns the number of waiting gangs.
func (l *Ledger) Len() int { return len(l.gangs) }

// Placed charges the gang's queue with the amount placed for the gang, and removes the gang.
func (l *Ledger) Placed(key string, amount place.Vector) {
	if it := l.gangs[key]; it != nil {
		l.Charge(it.Queue, amount)
		l.Remove(key)
	}
}
