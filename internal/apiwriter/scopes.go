package apiwriter

import (
	"time"
)

// scopes holds the sets of writes that recently failed with server errors: 5xx, timeouts, 429 from
// admission. A webhook of one namespace that is down, or an unavailable aggregated API, must not
// delay other writes. Therefore failures are counted by scope:
//
//	everything ── resource of a group ── verb and namespace
//	      ▲ several resources     ▲ several namespaces
//
// A scope is down when several of its writes in a row have failed. Its writes then wait, and one at
// a time probes, at a growing interval, whether the server carries them out again. A wider scope is
// down only if several narrower scopes within it are down and none of its writes was answered since
// they began to fail. Even then, a narrower scope without failures may send one write; if that is
// answered, the wider scope is up.
//
// Refused and broken connections belong to no scope: see W.outage.
type scopes struct {
	all    map[scopeKey]*scope
	parked int // writes that wait in scopes
}

// scopeKey identifies a scope: the zero value is everything, and a key without verb and namespace
// is a resource.
type scopeKey struct {
	group, resource string
	verb            verb
	namespace       string
}

// scope is the state of one set of writes. Scopes without recent failures are removed.
type scope struct {
	circuit
	key    scopeKey
	parent *scope
	asking *write // the probe in flight
	timed  bool   // a timer for askScope is set
	// since is when the failures began. lastAnswer is when a write of the scope was last answered.
	// touched is the time of the last failure or answer.
	since, lastAnswer, touched time.Time
	first, last                *write // list of the writes that wait
}

const (
	// scopesMax is the maximum number of scopes. Writes of further scopes are retried with their
	// own backoff only.
	scopesMax = 4096
	// scopeRest is how long an idle scope is kept.
	scopeRest = time.Minute
)

func resourceOf(x *write) scopeKey { return scopeKey{group: x.kind.Group, resource: x.kind.resource} }

func leafOf(x *write) scopeKey {
	k := resourceOf(x)
	k.verb, k.namespace = x.verb, x.name.Namespace
	return k
}

// path returns the existing scopes of x, widest first; a scope that does not exist is nil.
func (s *scopes) path(x *write) (everything, resource, leaf *scope) {
	if len(s.all) == 0 {
		return nil, nil, nil
	}
	return s.all[scopeKey{}], s.all[resourceOf(x)], s.all[leafOf(x)]
}

// gate returns the widest scope of x that is down, or nil.
func (s *scopes) gate(x *write) *scope {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
		if at != nil && at.open {
			return at
		}
	}
	return nil
}

// admit reports whether x may be sent now. If not, x waits in the scope that is down.
func (s *scopes) admit(x *write, now time.Time) bool {
	gate := s.gate(x)
	if gate == nil {
		return true
	}
	leaf := s.all[leafOf(x)]
	switch {
	case leaf == nil:
		if leaf = s.add(leafOf(x), now); leaf == nil {
			break
		}
		leaf.asking = x
		return true
	case leaf.failed == 0 && leaf.asking == nil:
		leaf.asking = x // this scope may have no failures
		return true
	}
	if gate.asking != nil || now.Before(gate.until) {
		s.park(gate, x)
		return false
	}
	gate.asking = x
	return true
}

// add creates the scope with this key, and the scopes that contain it. It returns nil if there are
// too many scopes.
func (s *scopes) add(key scopeKey, now time.Time) *scope {
	if at := s.all[key]; at != nil {
		return at
	}
	if len(s.all) >= scopesMax {
		if s.rest(now); len(s.all) >= scopesMax {
			return nil
		}
	}
	at := &scope{key: key, touched: now}
	switch {
	case key.verb != "":
		at.parent = s.add(scopeKey{group: key.group, resource: key.resource}, now)
	case key != scopeKey{}:
		at.parent = s.add(scopeKey{}, now)
	}
	if at.parent == nil && key != (scopeKey{}) {
		return nil
	}
	if s.all == nil {
		s.all = map[scopeKey]*scope{}
	}
	s.all[key] = at
	return at
}

// rest removes idle scopes.
func (s *scopes) rest(now time.Time) {
	parents := map[*scope]bool{}
	for range 3 { // narrower scopes go first
		clear(parents)
		for _, at := range s.all {
			parents[at.parent] = true
		}
		for key, at := range s.all {
			if !parents[at] && at.asking == nil && at.first == nil && now.Sub(at.touched) >= scopeRest {
				delete(s.all, key)
			}
		}
	}
}

// park appends x to the writes that wait in a scope. If only some writes of a scope fail, each
// write has its turn as the probe.
func (s *scopes) park(at *scope, x *write) {
	x.next, x.failing = nil, true
	if at.last == nil {
		at.first = x
	} else {
		at.last.next = x
	}
	at.last = x
	s.parked++
}

// unpark removes and returns the first write that waits in a scope, or nil.
func (s *scopes) unpark(at *scope) *write {
	x := at.first
	if x == nil {
		return nil
	}
	if at.first = x.next; at.first == nil {
		at.last = nil
	}
	x.next = nil
	s.parked--
	return x
}

// stopped records that x is no longer a probe.
func (s *scopes) stopped(x *write) {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
		if at != nil && at.asking == x {
			at.asking = nil
		}
	}
}

// answered records that x was answered, and returns the scopes that are up again.
func (s *scopes) answered(x *write, now time.Time) (back []*scope) {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
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
			at.until = now // writes held by the wider scope probe for themselves
		}
	}
	return back
}

func (at *scope) within(other *scope) bool {
	for ; at != nil; at = at.parent {
		if at == other {
			return true
		}
	}
	return false
}

// failed records that x failed. It returns the scope in which x has to wait, or nil, and whether
// that scope went down just now.
func (s *scopes) failed(x *write, after time.Duration, now time.Time) (down *scope, begun bool) {
	leaf := s.add(leafOf(x), now)
	if leaf == nil {
		return nil, false
	}
	gate := s.gate(x)
	for at := leaf; at != nil; at = at.parent {
		at.touched = now
	}
	if leaf.failed == 0 {
		leaf.since = now
	}
	if gate != leaf {
		leaf.failed++
	}
	switch {
	case gate != nil:
		gate.wait(after, now)
		return gate, false
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

// begin marks a scope as down.
func (at *scope) begin(after time.Duration, now time.Time) {
	if at.since.IsZero() || at.key.verb == "" {
		at.since = now
	}
	at.trip(after, now)
}

// fails reports whether a wider scope is down as a whole: its narrower scopes are down in several
// namespaces (and, for everything, in several resources), and none of its writes was answered since
// they began to fail.
func (s *scopes) fails(wider *scope) bool {
	namespaces, resources := map[string]bool{}, map[scopeKey]bool{}
	for _, at := range s.all {
		if at.key.verb != "" && at.open && at.within(wider) && at.since.After(wider.lastAnswer) {
			namespaces[at.key.namespace] = true
			resources[at.parent.key] = true
		}
	}
	return len(namespaces) > 1 && (wider.parent != nil || len(resources) > 1)
}

// gather moves all writes that wait in narrower scopes into the wider scope.
func (s *scopes) gather(wider *scope) {
	for _, at := range s.all {
		if at != wider && at.within(wider) {
			for x := s.unpark(at); x != nil; x = s.unpark(at) {
				s.park(wider, x)
			}
		}
	}
}

// recovering reports whether a scope of x is down, or was within recoveringTime.
func (s *scopes) recovering(x *write, now time.Time) bool {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
		if at != nil && at.recovering(now) {
			return true
		}
	}
	return false
}

// down returns the number of scopes that are down.
func (s *scopes) down() int {
	n := 0
	for _, at := range s.all {
		if at.open {
			n++
		}
	}
	return n
}
