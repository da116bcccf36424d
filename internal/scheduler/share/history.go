package share

import (
	"math"
	"time"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// history configures what the ledger remembers of the past.
type history struct {
	halfLife time.Duration // 0: nothing
	now      time.Time
	recalled bool // the usage of all queues in the tree is that of now
}

// past is what a queue has used: the mean of what its pods have held at each moment, weighted so that
// a moment counts half as much as one that is a half-life later. What is held counts from the moment
// of Charge, and a queue that is new has used nothing.
type past struct {
	average []float64 // of the queue alone, until at
	at      time.Time
	sum     []float64 // with the queues below, until history.now
}

// SetHalfLife has queues ordered by what they have used, and not by what they hold alone: the mean of
// their usage, which halves within this time if nothing is held, and of what they hold, as parts of the
// cluster and per weight. That is what their usage becomes one half-life later if they keep what they
// hold, so a gang that starts counts at once. 0 orders them by what they hold.
func (l *Ledger) SetHalfLife(d time.Duration) {
	l.halfLife, l.recalled, l.divided = max(d, 0), false, false
}

// SetTime sets the present time. The ledger's clock does not go back.
func (l *Ledger) SetTime(now time.Time) {
	if l.halfLife > 0 && now.After(l.now) {
		l.now, l.recalled = now, false
	}
}

// Remember sets what a queue has used until a moment, from which on it counts as holding what it
// holds now. The usage of queues below, and of parts, is not included.
func (l *Ledger) Remember(queue string, usage place.Vector, at time.Time) {
	q := l.queue(queue)
	q.past = past{at: at}
	if at.After(l.now) {
		q.past.at = l.now
	}
	for _, amount := range usage {
		q.past.average = append(q.past.average, float64(amount))
	}
	l.recalled = false
}

// Usage returns what a queue has used until now, without the queues below and without parts.
func (l *Ledger) Usage(queue string) place.Vector {
	q := l.queues[queue]
	if q == nil {
		return nil
	}
	l.advance(q)
	usage := make(place.Vector, len(q.past.average))
	for dim, amount := range q.past.average {
		usage[dim] = int64(math.Round(amount))
	}
	return usage
}

// leastUsage is the part of the cluster below which usage is not worth being remembered.
const leastUsage = 1e-3

// Remembers reports whether what a queue has used itself still counts.
func (l *Ledger) Remembers(queue string) bool {
	usage := l.Usage(queue)
	for dim, amount := range usage {
		if total := l.total.At(dim); total > 0 && float64(amount) >= leastUsage*float64(total) {
			return true
		}
	}
	return false
}

// advance brings the usage of a queue alone up to the present time.
func (l *Ledger) advance(q *queue) {
	if l.halfLife <= 0 {
		return
	}
	p := &q.past
	passed := l.now.Sub(p.at)
	if p.at.IsZero() {
		passed = 0
	}
	p.at = l.now
	if passed <= 0 {
		return
	}
	for len(p.average) < len(q.own.held) {
		p.average = append(p.average, 0)
	}
	kept := math.Exp2(-float64(passed) / float64(l.halfLife))
	for dim := range p.average {
		p.average[dim] = p.average[dim]*kept + float64(q.own.held.At(dim))*(1-kept)
	}
}

// recall brings the usage of all queues in the tree, and their ranks, up to the present time.
func (l *Ledger) recall() {
	if l.recalled || l.halfLife <= 0 {
		return
	}
	l.recallBelow(l.queues[Root])
	l.recalled = true
}

func (l *Ledger) recallBelow(q *queue) {
	l.advance(q)
	sum := append(q.past.sum[:0], q.past.average...)
	for _, c := range q.children {
		l.recallBelow(c)
		for dim, amount := range c.past.sum {
			if dim == len(sum) {
				sum = append(sum, 0)
			}
			sum[dim] += amount
		}
	}
	q.past.sum = sum
	l.rate(q)
}

// bequeath adds what a part of a queue has used to what the queue has used itself, because the part
// is about to be removed.
func (l *Ledger) bequeath(part *queue) {
	of := l.queues[part.Of]
	if part.Of == "" || of == nil {
		return
	}
	l.advance(part)
	l.advance(of)
	for dim, amount := range part.past.average {
		if dim == len(of.past.average) {
			of.past.average = append(of.past.average, 0)
		}
		of.past.average[dim] += amount
	}
	part.past = past{}
	l.recalled = false
}

// standing is what decides between siblings.
type standing struct {
	// served means that the queue has what it is entitled to.
	served bool
	// rank orders queues, smallest first.
	rank float64
}

// standingWith returns the standing that a queue would have with n more pods of this request. What it has
// above its share counts only beyond slack.
func (l *Ledger) standingWith(q *queue, request place.Vector, n int64, slack float64) standing {
	if l.halfLife <= 0 {
		share := q.shareWith(request, n) - slack
		return standing{share >= 1, share}
	}
	return standing{!q.below(request, n, slack), l.usageWith(q, request, n, slack)}
}

// below reports whether a queue has less than its spec states that it deserves, of all resources that the
// spec names.
func (q *queue) below(request place.Vector, n int64, slack float64) bool {
	stated := false
	for dim, amount := range q.Deserved {
		if amount == Unlimited {
			continue
		}
		stated = stated || amount > 0
		if held := q.sum.held.At(dim) + n*request.At(dim); held > 0 && float64(held) >= float64(amount)*(1+slack) {
			return false
		}
	}
	return stated
}

// usageWith returns the largest part of any of the cluster's resources that the queue will have used one
// half-life from now if it keeps what it holds and n more pods of this request, less slack, per weight.
func (l *Ledger) usageWith(q *queue, request place.Vector, n int64, slack float64) float64 {
	most := 0.0
	for dim, total := range l.total {
		if total <= 0 {
			continue
		}
		amount := float64(q.sum.held.At(dim) + n*request.At(dim))
		if dim < len(q.past.sum) {
			amount += q.past.sum[dim]
		}
		most = max(most, amount/2/float64(total))
	}
	return (most - slack) / float64(max(q.Weight, 1))
}
