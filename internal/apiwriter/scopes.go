package apiwriter

import (
	"time"
)

// scopes are the sets of writes that lately ended in failures of the server's: 5xx, time-outs, 429 of admission. A webhook of one
// namespace that is down, or an aggregated API, must not hold up the writes of others. So failures are judged where they occur:
//
//	everything ── resource of a group ── verb and namespace
//	      ▲ several resources     ▲ several namespaces
//
// A scope is down when several of its writes in a row have failed. Its writes wait then, and one at a time asks, at a growing
// interval, whether they are carried out again. A scope is down as a whole only if its parts are and none of its other writes
// was answered since. Even then a part that has not failed itself may try one write, which ends it.
//
// Refused and broken connections are no scope's: see outage.
type scopes struct {
	all    map[scopeKey]*scope
	parked int // writes that wait in scopes
}

// scopeKey names a scope: everything is the zero value, a resource has no verb.
type scopeKey struct {
	group, resource string
	verb            verb
	namespace       string
}

// scope is what is known of one set of writes. Scopes that are well are not kept.
type scope struct {
	key    scopeKey
	parent *scope
	down   bool
	failed int    // in a row; when it is down, of those that asked
	asking *write // whether the scope is back
	timed  bool   // askScope is set
	// since is when the failures began, answered when a write of the scope last was, and touched when either last happened.
	since, answered, touched time.Time
	until                    time.Time // when the next may ask
	started, ended           time.Time // of being down
	first, last              *write    // those that wait
}

const (
	// scopesMax bounds the scopes. Failures in others are left to the backoff of each write.
	scopesMax = 4096
	// scopeRest is how long a scope is kept that nothing happens in.
	scopeRest = time.Minute
	// retryAfterMax bounds how long the server may have us wait.
	retryAfterMax = 30 * time.Second
)

func resourceOf(x *write) scopeKey { return scopeKey{group: x.kind.Group, resource: x.kind.resource} }

func leafOf(x *write) scopeKey {
	k := resourceOf(x)
	k.verb, k.namespace = x.verb, x.name.Namespace
	return k
}

// path are the scopes of x that there are, the widest first. It ends with its narrowest, if that is known.
func (s *scopes) path(x *write) (everything, resource, leaf *scope) {
	if len(s.all) == 0 {
		return nil, nil, nil
	}
	return s.all[scopeKey{}], s.all[resourceOf(x)], s.all[leafOf(x)]
}

// gate is the widest scope of x that is down, or nil.
func (s *scopes) gate(x *write) *scope {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
		if at != nil && at.down {
			return at
		}
	}
	return nil
}

// admit reports whether x may be sent now. If not, it waits in the scope that is down.
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
		leaf.asking = x // it may be well
		return true
	}
	if gate.asking != nil || now.Before(gate.until) {
		s.park(gate, x)
		return false
	}
	gate.asking = x
	return true
}

// add makes the scope with this key, and those that it is in.
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

// rest forgets the scopes that nothing happens in.
func (s *scopes) rest(now time.Time) {
	parents := map[*scope]bool{}
	for range 3 { // those within go first
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

// park has x wait in a scope, the last of those that do: if some of a scope's writes fail and others would not, each has its turn
// to ask.
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

// unpark takes out the first write that waits in a scope, or nil.
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

// stopped says that x does not ask any more.
func (s *scopes) stopped(x *write) {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
		if at != nil && at.asking == x {
			at.asking = nil
		}
	}
}

// answered takes in that x was answered, and returns the scopes that are back by that.
func (s *scopes) answered(x *write, now time.Time) (back []*scope) {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
		if at == nil {
			continue
		}
		at.answered, at.touched, at.failed = now, now, 0
		if at.down {
			at.down, at.ended = false, now
			back = append(back, at)
		}
	}
	if len(back) == 0 {
		return nil
	}
	for _, at := range s.all {
		if at.down && at.within(back[0]) {
			at.until = now // what was held by the wider scope asks for itself
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

// failed takes in that x failed. It returns the scope that x makes wait, if any, and whether that is down since now.
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

// begin says that a scope is down.
func (at *scope) begin(after time.Duration, now time.Time) {
	if at.since.IsZero() || at.key.verb == "" {
		at.since = now
	}
	at.down, at.failed, at.started, at.until = true, 0, now, time.Time{}
	at.wait(after, now)
}

// wait sets when the next write may ask.
func (at *scope) wait(after time.Duration, now time.Time) {
	if now.Before(at.until) {
		return // of a write that was sent before
	}
	at.failed++
	wait := backoffJitter(min(outageMin<<min(at.failed-1, 10), outageMax))
	at.until = now.Add(max(wait, min(after, retryAfterMax)))
}

// fails reports whether a scope is down as a whole: parts of it in several namespaces are, several resources if it is everything,
// and none of its other writes was answered since.
func (s *scopes) fails(wider *scope) bool {
	namespaces, resources := map[string]bool{}, map[scopeKey]bool{}
	for _, at := range s.all {
		if at.key.verb != "" && at.down && at.within(wider) && at.since.After(wider.answered) {
			namespaces[at.key.namespace] = true
			resources[at.parent.key] = true
		}
	}
	return len(namespaces) > 1 && (wider.parent != nil || len(resources) > 1)
}

// gather has all that waits within a scope wait in the scope itself.
func (s *scopes) gather(wider *scope) {
	for _, at := range s.all {
		if at != wider && at.within(wider) {
			for x := s.unpark(at); x != nil; x = s.unpark(at) {
				s.park(wider, x)
			}
		}
	}
}

// recovering reports whether a scope of x is down, or was until lately.
func (s *scopes) recovering(x *write, now time.Time) bool {
	everything, resource, leaf := s.path(x)
	for _, at := range [...]*scope{everything, resource, leaf} {
		if at != nil && (at.down || !at.ended.IsZero() && now.Sub(at.ended) < recoveringTime) {
			return true
		}
	}
	return false
}

// down is how many scopes are down.
func (s *scopes) down() int {
	n := 0
	for _, at := range s.all {
		if at.down {
			n++
		}
	}
	return n
}
