package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// slowPerTenantMax limits the slow requests of a tenant: a tenant with more slow requests
	// starts no request, and a tenant with any runs at most one other.
	slowPerTenantMax = 1
	// queuedPerTenantMax is the maximum number of waiting requests of a tenant, and queuedMax the
	// maximum time that a request waits.
	queuedPerTenantMax = 1024
	queuedMax          = time.Minute
)

// slots says which requests may run: as many as there are slots, and slow ones beside them. It
// divides the time of the slots among tenants. It is safe for concurrent use.
type slots struct {
	normal, beside int           // number of slots, and of slow slots
	cpu            time.Duration // CPU time of a request

	mu      sync.Mutex
	closed  bool
	running int               // requests in slots
	slow    int               // requests in slow slots
	stuck   []*runningRequest // slow requests in slots, because no slow slot is free
	tenants map[string]*tenant
	active  map[*tenant]bool // tenants with running or waiting requests
	arrived uint64           // number of requests that have waited
	// floor is the used time with which tenants become active: the least used time among the active
	// tenants. It never falls.
	floor time.Duration
}

// tenant is the state of a tenant that has requests, or had some.
type tenant struct {
	name    string
	running []*runningRequest
	slow    int // number of slow requests in running
	waiting []*waiter
	used    time.Duration // time used by ended requests, on the scale of floor
	// usual is a moving average of the duration of the tenant's requests, at most the CPU time of
	// a request, which it is before the first request.
	usual time.Duration
}

type waiter struct {
	arrival uint64
	ready   chan error
	turn    *runningRequest // set when ready
}

// runningRequest is a running request. The slots' mu guards its fields.
type runningRequest struct {
	tenant     *tenant
	begin      time.Time
	slow       bool
	inSlowSlot bool
}

// close ends the waiting requests, and all further ones, with ErrClosed.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, t := range s.tenants {
		for _, w := range t.waiting {
			w.ready <- ErrClosed
		}
		t.waiting = nil
	}
}

// acquire waits until a request of a tenant may run.
func (s *slots) acquire(ctx context.Context, name string) (*runningRequest, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	t := s.activate(name)
	if len(t.waiting) == 0 && s.running < s.normal && t.mayRun() {
		r := s.begin(t)
		s.mu.Unlock()
		return r, nil
	}
	if len(t.waiting) >= queuedPerTenantMax {
		s.mu.Unlock()
		return nil, fmt.Errorf("namespace %s: %w", name, ErrBusy)
	}
	s.arrived++
	w := &waiter{arrival: s.arrived, ready: make(chan error, 1)}
	t.waiting = append(t.waiting, w)
	s.mu.Unlock()

	timer := time.NewTimer(queuedMax)
	defer timer.Stop()
	var err error
	select {
	case err := <-w.ready:
		return w.turn, err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("namespace %s: %w", name, ErrBusy)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range t.waiting {
		if t.waiting[i] == w {
			t.waiting = append(t.waiting[:i:i], t.waiting[i+1:]...)
			s.deactivate(t)
			return nil, err
		}
	}
	err = <-w.ready // its turn has come meanwhile
	return w.turn, err
}

// activate returns the tenant of that name, and makes it active.
func (s *slots) activate(name string) *tenant {
	t := s.tenants[name]
	if t == nil {
		t = &tenant{name: name, usual: s.cpu}
		s.tenants[name] = t
	}
	if s.active[t] {
		return t
	}
	now, first := time.Now(), true
	var least time.Duration
	for other := range s.active {
		if used := other.usedBy(now); first || used < least {
			first, least = false, used
		}
	}
	s.floor = max(s.floor, least)
	// A tenant loses the share that it did not use while it had no requests, and use above floor
	// plus one evaluation is forgiven.
	t.used = min(max(t.used, s.floor), s.floor+s.cpu)
	s.active[t] = true
	return t
}

// deactivate makes a tenant inactive if it has no requests left.
func (s *slots) deactivate(t *tenant) {
	if len(t.running) > 0 || len(t.waiting) > 0 {
		return
	}
	delete(s.active, t)
	if len(s.active) == 0 {
		s.floor = max(s.floor, t.used)
	}
	s.forget()
}

// mayRun reports whether one more request of the tenant may run.
func (t *tenant) mayRun() bool {
	if t.slow > slowPerTenantMax {
		return false
	}
	return t.slow == 0 || len(t.running)-t.slow < 1
}

// begin takes a slot for a request of t.
func (s *slots) begin(t *tenant) *runningRequest {
	s.running++
	r := &runningRequest{tenant: t, begin: time.Now()}
	t.running = append(t.running, r)
	return r
}

// slowed records that a request is slow, and moves it out of its slot if a slow slot is free.
func (s *slots) slowed(r *runningRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.slow {
		return
	}
	r.slow = true
	r.tenant.slow++
	s.stuck = append(s.stuck, r)
	s.moveAside()
	s.dispatch()
}

// moveAside moves slow requests from slots to free slow slots.
func (s *slots) moveAside() {
	for s.slow < s.beside && len(s.stuck) > 0 {
		r := s.stuck[0]
		s.stuck = s.stuck[1:]
		r.inSlowSlot = true
		s.slow++
		s.running--
	}
}

// release releases a slot.
func (s *slots) release(r *runningRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := r.tenant
	t.running = slices.DeleteFunc(t.running, func(other *runningRequest) bool { return other == r })
	if r.slow {
		t.slow--
	}
	if r.inSlowSlot {
		s.slow--
		s.moveAside()
	} else {
		s.running--
		s.stuck = slices.DeleteFunc(s.stuck, func(other *runningRequest) bool { return other == r })
	}
	took := time.Since(r.begin)
	t.used += took
	t.usual = (t.usual + min(took, s.cpu)) / 2
	s.dispatch()
	s.deactivate(t)
}

// usedBy returns the time that t has used by now.
func (t *tenant) usedBy(now time.Time) time.Duration {
	used := t.used
	for _, r := range t.running {
		used += now.Sub(r.begin)
	}
	return used
}

// rank returns the time that t will have used at the end of another request, if this one and the
// running ones take as long as its requests usually do.
func (t *tenant) rank(now time.Time) time.Duration {
	return t.usedBy(now) + t.usual*time.Duration(len(t.running)+1)
}

// dispatch starts waiting requests while slots are free. It takes the tenant with the lowest rank
// first, and among equal ranks the tenant whose first request has waited longest.
func (s *slots) dispatch() {
	now := time.Now()
	for s.running < s.normal {
		var next *tenant
		for t := range s.active {
			if len(t.waiting) == 0 || !t.mayRun() {
				continue
			}
			if next == nil || cmp.Or(cmp.Compare(t.rank(now), next.rank(now)),
				cmp.Compare(t.waiting[0].arrival, next.waiting[0].arrival)) < 0 {
				next = t
			}
		}
		if next == nil {
			return
		}
		w := next.waiting[0]
		next.waiting = next.waiting[1:]
		w.turn = s.begin(next)
		w.ready <- nil
	}
}

// tenantsMax is the number of known tenants at which inactive tenants that have used no more than
// floor are forgotten.
const tenantsMax = 1024

func (s *slots) forget() {
	if len(s.tenants) < tenantsMax {
		return
	}
	for name, t := range s.tenants {
		if !s.active[t] && t.used <= s.floor {
			delete(s.tenants, name)
		}
	}
}
