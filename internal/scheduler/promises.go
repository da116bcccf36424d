package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// promises are the amounts that gangs which have started will request for pods that do not exist, or
// have no node, yet. They keep other gangs from starting that announce more than their pods request,
// and no others: a driver whose executors would find no room does not start, but a promise takes no
// room from pods that exist. A promise has no nodes; only sums are compared.
//
//	Gang.Announced ──refuse──▶ waits ──pods end, promises end, the gang insists──▶ tried again
//	               └─started─▶ promise ──Promise: its pods got nodes──▶ smaller ──▶ none
//
// Nothing of this is stored. After a restart the owner promises again what it finds started.
type promises struct {
	s     *Scheduler
	gangs map[string]promise
	sum   place.Vector
	// fewer means that less is promised than in the last cycle: gangs that announce pods are tried
	// again.
	fewer bool
	// free is what the nodes have free in all, in this state of the view; nil if it is not known.
	free place.Vector
}

type promise struct {
	queue   string
	amounts place.Vector
	// insisted means that the gang started although the amounts were not free, because it had waited
	// too long.
	insisted bool
}

// Promise sets what a gang that has started will request for pods without a node, in place of what
// was promised when it started. An empty list ends the promise.
func (s *Scheduler) Promise(gang, queue string, amounts corev1.ResourceList) {
	s.mu.Lock()
	s.promised[gang] = promise{queue: queue, amounts: s.cluster.Dims().Vector(amounts)}
	s.mu.Unlock()
	s.poke()
}

// set replaces the promise to a gang.
func (r *promises) set(gang string, p promise) {
	old, had := r.gangs[gang]
	if had && old.queue == p.queue && slices.Equal(old.amounts, p.amounts) {
		return
	}
	if had {
		r.s.ledger.Promise(old.queue, place.Vector(nil).Plus(old.amounts, -1))
		r.sum = r.sum.Plus(old.amounts, -1)
		r.fewer = true
		delete(r.gangs, gang)
	}
	if exceeds(p.amounts, nil) {
		p.insisted = p.insisted || had && old.insisted
		r.gangs[gang] = p
		r.sum = r.sum.Plus(p.amounts, 1)
		r.s.ledger.Promise(p.queue, p.amounts)
	}
}

// started promises to a gang that is starting the rest of what it announces. held is what its placed
// pods request.
func (r *promises) started(e *pendingGang, held place.Vector) {
	if r.free != nil {
		r.free = r.free.Plus(held, -1)
	}
	if e.announced == nil {
		return
	}
	r.s.mu.Lock()
	delete(r.s.promised, e.gang.Key) // it was set before this start
	r.s.mu.Unlock()
	r.set(e.gang.Key, promise{e.gang.Queue, positive(e.announced.Plus(held, -1)), e.insists})
}

// refuse returns why a gang must not start because of the pods that it announces, or nil.
func (r *promises) refuse(e *pendingGang) *Reason {
	e.insists = false
	if e.announced == nil {
		return nil
	}
	const field = "spec.minResources: "
	own := r.gangs[e.gang.Key].amounts
	var why *Reason
	if refused := r.s.ledger.AdmitPromised(e.gang.Queue, positive(e.announced.Plus(own, -1))); refused != nil {
		reason := refusalReason(refused, e)
		reason.Message, reason.Detail = field+reason.Message, field+reason.Detail
		why = &reason
	} else if dim, short := r.short(e.announced, own); short {
		dims := r.s.cluster.Dims()
		wanted, free, others := dims.Quantity(dim, e.announced[dim]), dims.Quantity(dim, r.room().At(dim)),
			dims.Quantity(dim, r.sum.At(dim)-own.At(dim))
		message := fmt.Sprintf("%s%s of %s are not free", field, wanted.String(), dims.Name(dim))
		why = &Reason{Code: NotEnoughResources, Message: message, Detail: fmt.Sprintf(
			"%s: %s are, of which %s are promised to pods of other groups", message, free.String(), others.String())}
	}
	if why == nil {
		return nil
	}
	why.Announced = true
	if !r.mayInsist(e) {
		return why
	}
	return nil
}

// short returns the first dimension of which less is free, besides what is promised to others, than
// is announced.
func (r *promises) short(announced, own place.Vector) (dim int, short bool) {
	free := r.room()
	for dim, amount := range announced {
		if amount > 0 && amount > free.At(dim)-(r.sum.At(dim)-own.At(dim)) {
			return dim, true
		}
	}
	return 0, false
}

// room returns what the nodes have free in all.
func (r *promises) room() place.Vector {
	if r.free == nil {
		r.free = make(place.Vector, r.s.cluster.Dims().Len())
		for _, n := range r.s.view.All() {
			for dim := range r.free {
				if !n.Unschedulable {
					r.free[dim] += max(0, n.Allocatable.At(dim)-n.Used.At(dim))
				}
			}
		}
	}
	return r.free
}

// mayInsist reports whether a gang starts although what it announces is not free. Only gangs without
// pods do: their pods, once they exist, get nodes as a whole or not at all, so nothing is lost if
// they wait in the place of their group, and only pods can evict others or have capacity kept for
// them. A gang insists if a rule could allow it to evict pods, or if it has waited too long. Of the
// latter there is one at a time in each queue.
func (r *promises) mayInsist(e *pendingGang) bool {
	if len(e.classes) > 0 || exceeds(e.announced, r.s.cluster.Total()) || r.s.ledger.Exceeds(e.gang.Queue, e.announced) {
		return false
	}
	if r.s.evictions.cfg.Mode.evicts() && r.s.evictions.hasRight(e) {
		return true
	}
	bound := r.s.overdue.bound(e)
	if bound <= 0 || r.s.clock.Since(e.since()) < bound {
		return false
	}
	for _, p := range r.gangs {
		if p.insisted && p.queue == e.gang.Queue {
			return false
		}
	}
	e.insists = true
	return true
}

// exceeds reports whether v is larger than w in a dimension.
func exceeds(v, w place.Vector) bool {
	for dim, amount := range v {
		if amount > w.At(dim) {
			return true
		}
	}
	return false
}

// positive returns v with its negative amounts set to 0.
func positive(v place.Vector) place.Vector {
	out := slices.Clone(v)
	for dim := range out {
		out[dim] = max(out[dim], 0)
	}
	return out
}
