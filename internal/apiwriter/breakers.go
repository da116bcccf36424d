package apiwriter

import "time"

// breakers holds the circuit breakers of writes that recently failed with server errors: 5xx,
// timeouts, 429 from admission. A webhook of one namespace that is down, or an unavailable
// aggregated API, must not delay other writes. Therefore failures are counted in breakers:
//
//	everything ── resource of a group ── verb and namespace
//	      ▲ several resources     ▲ several namespaces
//
// A breaker is open when several of its writes in a row have failed. Its writes then wait, and one
// at a time probes, at a growing interval, whether the server carries them out again. A wider
// breaker is open only if several narrower breakers within it are open and none of its writes was
// answered since they began to fail. Even then, a narrower breaker without failures may send one
// write; if that is answered, the wider breaker is closed.
//
// Refused and broken connections belong to no breaker: see W.outage.
type breakers struct {
	all     map[breakerKey]*breaker
	waiting int // writes that wait in breakers
}

// breakerKey identifies a breaker: the zero value is everything, and a key without verb and
// namespace is a resource.
type breakerKey struct {
	group, resource string
	verb            verb
	namespace       string
}

// breaker is the state of one set of writes. Breakers without recent failures are removed.
type breaker struct {
	circuit
	key    breakerKey
	parent *breaker
	probe  *write // the probe in flight
	timed  bool   // a timer for sendProbe is set
	// since is when the failures began. lastAnswer is when a write of the breaker was last
	// answered. touched is the time of the last failure or answer.
	since, lastAnswer, touched time.Time
	first, last                *write // list of the writes that wait
}

const (
	// breakersMax is the maximum number of breakers. Writes that would need a further breaker are
	// only retried with a backoff of their own.
	breakersMax = 4096
	// breakerIdle is how long an idle breaker is kept.
	breakerIdle = time.Minute
)

func resourceOf(x *write) breakerKey {
	return breakerKey{group: x.kind.Group, resource: x.kind.resource}
}

func leafOf(x *write) breakerKey {
	k := resourceOf(x)
	k.verb, k.namespace = x.verb, x.name.Namespace
	return k
}

// path returns the existing breakers of x, widest first; a breaker that does not exist is nil.
func (s *breakers) path(x *write) (everything, resource, leaf *breaker) {
	if len(s.all) == 0 {
		return nil, nil, nil
	}
	return s.all[breakerKey{}], s.all[resourceOf(x)], s.all[leafOf(x)]
}

// widestOpen returns the widest breaker of x that is open, or nil.
func (s *breakers) widestOpen(x *write) *breaker {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*breaker{everything, resource, leaf} {
		if at != nil && at.open {
			return at
		}
	}
	return nil
}

// admit reports whether x may be sent now. If not, x waits in the breaker that is open.
func (s *breakers) admit(x *write, now time.Time) bool {
	open := s.widestOpen(x)
	if open == nil {
		return true
	}
	leaf := s.all[leafOf(x)]
	switch {
	case leaf == nil:
		if leaf = s.add(leafOf(x), now); leaf == nil {
			break
		}
		leaf.probe = x
		return true
	case leaf.failed == 0 && leaf.probe == nil:
		leaf.probe = x // the server may still carry out this breaker's writes
		return true
	}
	if open.probe != nil || now.Before(open.until) {
		s.enqueue(open, x)
		return false
	}
	open.probe = x
	return true
}

// add creates the breaker with this key, and the breakers that contain it. It returns nil if there
// are too many breakers.
func (s *breakers) add(key breakerKey, now time.Time) *breaker {
	if at := s.all[key]; at != nil {
		return at
	}
	if len(s.all) >= breakersMax {
		if s.expire(now); len(s.all) >= breakersMax {
			return nil
		}
	}
	at := &breaker{key: key, touched: now}
	switch {
	case key.verb != "":
		at.parent = s.add(breakerKey{group: key.group, resource: key.resource}, now)
	case key != breakerKey{}:
		at.parent = s.add(breakerKey{}, now)
	}
	if at.parent == nil && key != (breakerKey{}) {
		return nil
	}
	if s.all == nil {
		s.all = map[breakerKey]*breaker{}
	}
	s.all[key] = at
	return at
}

// expire removes idle breakers.
func (s *breakers) expire(now time.Time) {
	parents := map[*breaker]bool{}
	for range 3 { // narrower breakers go first
		clear(parents)
		for _, at := range s.all {
			parents[at.parent] = true
		}
		for key, at := range s.all {
			if !parents[at] && at.probe == nil && at.first == nil && now.Sub(at.touched) >= breakerIdle {
				delete(s.all, key)
			}
		}
	}
}

// enqueue appends x to the writes that wait in a breaker. If only some writes of a breaker fail, each
// write has its turn as the probe.
func (s *breakers) enqueue(at *breaker, x *write) {
	x.next, x.failing = nil, true
	if at.last == nil {
		at.first = x
	} else {
		at.last.next = x
	}
	at.last = x
	s.waiting++
}

// dequeue removes and returns the first write that waits in a breaker, or nil.
func (s *breakers) dequeue(at *breaker) *write {
	x := at.first
	if x == nil {
		return nil
	}
	if at.first = x.next; at.first == nil {
		at.last = nil
	}
	x.next = nil
	s.waiting--
	return x
}

// probeEnded records that x is no longer a probe.
func (s *breakers) probeEnded(x *write) {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*breaker{everything, resource, leaf} {
		if at != nil && at.probe == x {
			at.probe = nil
		}
	}
}

// answered records that x was answered, and returns the breakers that are closed again.
func (s *breakers) answered(x *write, now time.Time) (back []*breaker) {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*breaker{everything, resource, leaf} {
		if at == nil {
			continue
		}
		at.lastAnswer, at.touched = now, now
		if at.answered(now) {
			back = append(back, at)
		}
	}
	if len(back) == 0 {
		return nil
	}
	for _, at := range s.all {
		if at.open && at.within(back[0]) {
			at.until = now // writes held by the wider breaker probe for themselves
		}
	}
	return back
}

func (at *breaker) within(other *breaker) bool {
	for ; at != nil; at = at.parent {
		if at == other {
			return true
		}
	}
	return false
}

// failed records that x failed. It returns the breaker in which x has to wait, or nil, and whether
// that breaker opened just now.
func (s *breakers) failed(x *write, after time.Duration, now time.Time) (down *breaker, begun bool) {
	leaf := s.add(leafOf(x), now)
	if leaf == nil {
		return nil, false
	}
	open := s.widestOpen(x)
	for at := leaf; at != nil; at = at.parent {
		at.touched = now
	}
	if leaf.failed == 0 {
		leaf.since = now
	}
	if open != leaf {
		leaf.failed++
	}
	switch {
	case open != nil:
		open.wait(after, now)
		return open, false
	case leaf.failed < outageAfter:
		return nil, false
	}
	leaf.begin(after, now)
	for wider := leaf.parent; wider != nil && s.fails(wider); wider = wider.parent {
		wider.begin(after, now)
		s.gather(wider)
		leaf = wider
	}
	return leaf, true
}

// begin marks a breaker as open.
func (at *breaker) begin(after time.Duration, now time.Time) {
	if at.since.IsZero() || at.key.verb == "" {
		at.since = now
	}
	at.trip(after, now)
}

// fails reports whether a wider breaker is open as a whole: its narrower breakers are open in
// several namespaces (and, for everything, in several resources), and none of its writes was
// answered since they began to fail.
func (s *breakers) fails(wider *breaker) bool {
	namespaces, resources := map[string]bool{}, map[breakerKey]bool{}
	for _, at := range s.all {
		if at.key.verb != "" && at.open && at.within(wider) && at.since.After(wider.lastAnswer) {
			namespaces[at.key.namespace] = true
			resources[at.parent.key] = true
		}
	}
	return len(namespaces) > 1 && (wider.parent != nil || len(resources) > 1)
}

// gather moves all writes that wait in narrower breakers into the wider breaker.
func (s *breakers) gather(wider *breaker) {
	for _, at := range s.all {
		if at != wider && at.within(wider) {
			for x := s.dequeue(at); x != nil; x = s.dequeue(at) {
				s.enqueue(wider, x)
			}
		}
	}
}

// recovering reports whether a breaker of x is open, or was within recoveringTime.
func (s *breakers) recovering(x *write, now time.Time) bool {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*breaker{everything, resource, leaf} {
		if at != nil && at.recovering(now) {
			return true
		}
	}
	return false
}

// openCount returns the number of breakers that are open.
func (s *breakers) openCount() int {
	n := 0
	for _, at := range s.all {
		if at.open {
			n++
		}
	}
	return n
}
