package podset

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler"
)

// Request is one request to the scheduler for the nodes of a gang. It implements scheduler.Owner,
// and posts the scheduler's answers to the owner of the set.
type Request struct {
	// Stale means that the request no longer matches what the set needs.
	Stale bool
	// Why is the latest reason why the gang waits, and Since when the scheduler reported it. Why is
	// nil if the scheduler has reported none.
	Why   *scheduler.Reason
	Since time.Time

	cfg   *Config
	owner types.NamespacedName
	uid   types.UID
	gang  *scheduler.Gang
	slots [][]Ref // the slots of each demand; the zero Ref replaces a slot that was placed
}

// Submit requests nodes for slots, and replaces an earlier request with the gang's key. slots has
// the slots of each demand of the gang; Submit sets the demands' units.
func (s *Set) Submit(g *scheduler.Gang, slots [][]Ref) *Request {
	q := &Request{cfg: s.cfg, owner: s.key, uid: s.uid, gang: g, slots: slots}
	for d, refs := range slots {
		units := make([]types.NamespacedName, len(refs))
		g.Demands[d].Existing = nil
		for i, r := range refs {
			units[i] = s.podName(r)
			s.move(r, Queued)
			if g.Ahead && r.slot().uid != "" {
				if g.Demands[d].Existing == nil {
					g.Demands[d].Existing = make([]bool, len(refs))
				}
				g.Demands[d].Existing[i] = true
			}
		}
		g.Demands[d].Units = units
	}
	if s.requests == nil {
		s.requests = map[string]*Request{}
	}
	s.requests[g.Key] = q
	g.Owner = q
	s.cfg.Scheduler.Submit(g)
	return q
}

// Resubmit replaces a request by one for the slots that are still queued, or withdraws it if none
// is. If the request was all or nothing, the new one is, too.
func (s *Set) Resubmit(q *Request) {
	g := *q.gang
	g.Demands, g.Parts, g.MinParts = nil, nil, nil // whose owners submit a new gang instead
	var slots [][]Ref
	before, left := 0, 0
	for d, refs := range q.slots {
		before += len(refs)
		if refs = s.queued(refs); len(refs) > 0 {
			left += len(refs)
			slots = append(slots, refs)
			g.Demands = append(g.Demands, scheduler.Demand{Template: q.gang.Demands[d].Template})
		}
	}
	if g.Near != nil {
		g.Mates = slices.Clone(g.Mates)
		for _, d := range q.gang.Demands {
			g.Mates = append(g.Mates, d.Units...)
		}
	}
	if left == 0 {
		s.cfg.Scheduler.Withdraw(g.Key)
		delete(s.requests, g.Key)
		return
	}
	if g.MinMember == before {
		g.MinMember = left
	}
	now := s.Submit(&g, slots)
	now.Why, now.Since = q.Why, q.Since
}

// Requests returns the requests by the keys of their gangs.
func (s *Set) Requests() map[string]*Request { return s.requests }

// Queued returns the slots of a request that are not placed.
func (s *Set) Queued(q *Request) []Ref { return s.queued(slices.Concat(q.slots...)) }

func (s *Set) queued(refs []Ref) []Ref {
	return slices.DeleteFunc(slices.Clone(refs), func(r Ref) bool {
		return r.Group == nil || !s.has(r.Group) || r.slot().state != Queued
	})
}

// Commit implements scheduler.Owner.
func (q *Request) Commit(g *scheduler.Gang, placed []scheduler.Assignment) {
	commit := func(s *Set) Event { return s.commit(q, g, placed) }
	if !q.cfg.Post(q.owner, "", commit) {
		commit(&Set{})
	}
}

// Waiting implements scheduler.Owner. Slots whose pods are to be created ahead leave the request: the
// owner submits them again when the pods exist.
func (q *Request) Waiting(_ *scheduler.Gang, why scheduler.Reason) {
	q.cfg.Post(q.owner, q.uid, func(s *Set) Event {
		if s.requests[q.gang.Key] != q {
			return Event{}
		}
		q.Why, q.Since = &why, q.cfg.Clock.Now()
		for d, units := range why.Ahead {
			for _, unit := range units {
				if r := q.slots[d][unit]; r.Group != nil && s.has(r.Group) && r.slot().state == Queued && r.slot().uid == "" {
					s.Create(r)
				}
			}
		}
		return Event{Kind: Waits, Request: q}
	})
}

// commit accepts a placement: it queues the writes of the placed slots' pods. It releases the
// reservations of slots that are no longer wanted, and all of a request that was withdrawn or
// replaced while it was being placed: the scheduler may place the slots of its successor, too.
func (s *Set) commit(q *Request, g *scheduler.Gang, placed []scheduler.Assignment) Event {
	same := s.uid == q.uid
	current := same && s.requests[q.gang.Key] == q
	for _, a := range placed {
		r := q.slots[a.Demand][a.Unit]
		q.slots[a.Demand][a.Unit] = Ref{}
		if current && r.Group != nil && s.has(r.Group) && r.slot().state == Queued {
			s.plan(Placing, write{r, a.Node, a.Annotations, a.Assumption})
		} else {
			q.cfg.Model.Forget(g.Demands[a.Demand].Units[a.Unit], a.Assumption)
		}
	}
	if !same {
		return Event{}
	}
	q.Why = nil
	if current && len(s.Queued(q)) == 0 {
		delete(s.requests, q.gang.Key)
	}
	if s.cfg.Window == 0 {
		s.Pump()
	}
	return Event{Kind: Placed, Request: q}
}

// WithdrawGangs withdraws all requests. Placed slots keep their nodes.
func (s *Set) WithdrawGangs() {
	if len(s.requests) == 0 {
		return
	}
	for key := range s.requests {
		s.cfg.Scheduler.Withdraw(key)
	}
	s.requests = nil
	for _, g := range s.groups {
		if g.Counts[Queued] == 0 && g.Surplus == 0 {
			continue
		}
		for i := range g.slots {
			if g.slots[i].state == Queued {
				s.Unplace(Ref{g, int32(i)})
			}
		}
	}
}

// Withdraw withdraws all requests, and releases all placements whose pods have not been passed to
// the writer.
func (s *Set) Withdraw() {
	s.WithdrawGangs()
	s.dropUnsent(func(write) bool { return true })
}

// Unplace returns a slot without a node to its state before the request.
func (s *Set) Unplace(r Ref) {
	if r.slot().uid != "" {
		s.move(r, Unbound)
		return
	}
	s.move(r, Absent)
}

// RollBack withdraws the gang and deletes its pods that have not ended, so that the gang holds no
// resources while it waits.
func (s *Set) RollBack() {
	s.WithdrawGangs()
	for r := range s.every() {
		if state := r.slot().state; state.HasPod() && !state.Ended() {
			s.Delete(r, nil, "roll-back-gang")
		}
	}
}

// ReleaseReservations withdraws all requests and forgets the reservations that the scheduler may have
// assumed for their slots. It is called after a panic in the owner's turn, which may have lost a
// posted placement.
func (s *Set) ReleaseReservations() {
	for key := range s.requests {
		s.cfg.Scheduler.Withdraw(key)
	}
	for r := range s.every() {
		if r.slot().state == Queued {
			s.cfg.Model.Forget(s.podName(r), 0)
		}
	}
}
