package podset

import (
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler"
)

// Request is one request to the scheduler for the nodes of a gang. It implements scheduler.Owner,
// and posts the scheduler's answers to the owner of the set.
type Request struct {
	// Stale means that the request differs from the present need.
	Stale bool

	cfg   *Config
	owner types.NamespacedName
	uid   types.UID
	key   string
	slots [][]Ref // of each demand
}

// Submit requests nodes for slots, and replaces the request with the gang's key. slots are those of
// each demand of the gang; Submit fills in the demands' units.
func (s *Set) Submit(g *scheduler.Gang, slots [][]Ref) *Request {
	q := &Request{cfg: s.cfg, owner: s.key, uid: s.uid, key: g.Key, slots: slots}
	for d, refs := range slots {
		units := make([]types.NamespacedName, len(refs))
		for i, r := range refs {
			units[i] = s.podName(r)
			s.move(r, Queued)
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

// Requested returns the request of a gang, or nil.
func (s *Set) Requested(key string) *Request { return s.requests[key] }

// Commit implements scheduler.Owner.
func (q *Request) Commit(g *scheduler.Gang, placed []scheduler.Assignment) {
	commit := func(s *Set) Event { return s.commit(q, g, placed) }
	if !q.cfg.Post(q.owner, "", commit) {
		commit(&Set{})
	}
}

// Waiting implements scheduler.Owner.
func (q *Request) Waiting(_ *scheduler.Gang, why scheduler.Reason) {
	q.cfg.Post(q.owner, q.uid, func(s *Set) Event {
		if s.requests[q.key] != q {
			return Event{}
		}
		return Event{Kind: Waits, Request: q, Why: &why}
	})
}

// commit takes in a placement: the pods of the placed slots are to be written. Room for slots that
// are no longer wanted is given back.
func (s *Set) commit(q *Request, g *scheduler.Gang, placed []scheduler.Assignment) Event {
	same := s.uid == q.uid
	for _, a := range placed {
		r := q.slots[a.Demand][a.Unit]
		switch {
		case !same || !s.has(r.Group):
			q.cfg.Model.Forget(g.Demands[a.Demand].Units[a.Unit])
		case r.slot().state == Queued:
			s.place(r, a.Node, a.Annotations)
		case !r.slot().state.Holds():
			q.cfg.Model.Forget(g.Demands[a.Demand].Units[a.Unit])
		}
	}
	if !same {
		return Event{}
	}
	switch now := s.requests[q.key]; {
	case now == q:
		if !q.waits(s) {
			delete(s.requests, q.key)
		}
	case now != nil:
		// The request was replaced while it was being placed: its successor requests these slots
		// again.
		now.Stale = true
	}
	if s.cfg.Window == 0 {
		s.Pump()
	}
	return Event{Kind: Placed, Request: q}
}

// waits reports whether slots of the request are still to be placed.
func (q *Request) waits(s *Set) bool {
	for _, refs := range q.slots {
		for _, r := range refs {
			if r.slot().state == Queued && s.has(r.Group) {
				return true
			}
		}
	}
	return false
}

// Key returns the key of the request's gang.
func (q *Request) Key() string { return q.key }

// WithdrawGangs takes back all requests. Placed slots keep their nodes.
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

// WithdrawGang takes back one request whose slots have been given up.
func (s *Set) WithdrawGang(key string) {
	if s.requests[key] != nil {
		s.cfg.Scheduler.Withdraw(key)
		delete(s.requests, key)
	}
}

// Withdraw takes back all requests and all placements that have not become pods.
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

// RollBack withdraws the gang and deletes its pods that have not ended, so that it holds nothing
// while it waits.
func (s *Set) RollBack() {
	s.WithdrawGangs()
	for r := range s.every() {
		if state := r.slot().state; state.HasPod() && !state.Ended() {
			s.Delete(r, nil, "roll-back-gang")
		}
	}
}

// GiveBackRoom takes back all requests, and releases the room that the scheduler may have assumed for
// their slots, after a panic in the owner's turn, which may have lost the message that they were
// placed.
func (s *Set) GiveBackRoom() {
	for key := range s.requests {
		s.cfg.Scheduler.Withdraw(key)
	}
	for r := range s.every() {
		if r.slot().state == Queued {
			s.cfg.Model.Forget(s.podName(r))
		}
	}
}
