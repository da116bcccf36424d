package apiwriter

import (
	"time"
)

// outage is the state of a server that cannot be reached. While it is active, one request at a time asks whether the server is
// back, at a growing interval. What the server answers, 503 included, is no outage: see scopes.
type outage struct {
	active  bool
	failed  int // requests in a row without an answer
	until   time.Time
	started time.Time
	ended   time.Time
}

const (
	outageAfter    = 4 // failures in a row that make an outage; a refused connection makes one at once
	outageMin      = 50 * time.Millisecond
	outageMax      = time.Second
	recoveringTime = 10 * time.Second
)

// recovering says that the server has been away until lately.
func (o *outage) recovering(now time.Time) bool {
	return o.active || !o.ended.IsZero() && now.Sub(o.ended) < recoveringTime
}

// observe follows whether the server is there, and which writes it carries out. started is when the request was sent. It reports
// whether the request's end says something about the pace of all. The caller holds mu.
func (w *W) observe(x *write, started, now time.Time, o outcome, err error) (general bool) {
	w.scopes.stopped(x)
	if w.stopped {
		return false // requests end because we end them
	}
	if o.verdict == unavailable && !o.scoped {
		w.unreachable(now, o, err)
		return true
	}
	w.reached(now)
	switch {
	case o.scoped:
		return w.scopeFailed(x, started, now, o, err)
	case o.verdict == overloaded:
		return true // it says nothing about the scope
	}
	w.lastAnswer = now
	for _, back := range w.scopes.answered(x, now) {
		w.log.Info("API server carries out these writes again", back.attrs("away", now.Sub(back.started).Round(time.Millisecond))...)
		for waiting := w.scopes.unpark(back); waiting != nil; waiting = w.scopes.unpark(back) {
			w.queue.push(waiting)
		}
	}
	return true
}

// unreachable takes in a request that got no answer. The caller holds mu.
func (w *W) unreachable(now time.Time, o outcome, err error) {
	d := &w.down
	if d.active && now.Before(d.until) {
		return // sent before the outage was noticed
	}
	d.failed++
	if !d.active {
		if o.applied && d.failed < outageAfter {
			return
		}
		d.active, d.failed, d.started = true, 1, now
		w.log.Warn("API server does not answer; writes wait", "err", err, "waiting", w.queue.len)
	}
	d.until = now.Add(backoffJitter(min(outageMin<<min(d.failed-1, 10), outageMax)))
	w.after(d.until.Sub(now), &timer{due: func() {}})
}

// reached takes in that the server has answered something. The caller holds mu.
func (w *W) reached(now time.Time) {
	w.answered = true
	d := &w.down
	if d.active {
		d.ended = now
		w.log.Info("API server answers again", "away", now.Sub(d.started).Round(time.Millisecond), "waiting", w.queue.len)
	}
	d.active, d.failed = false, 0
}

// scopeFailed records a failure of the write's scope. It reports whether the failure also counts for the whole server: a
// time-out does, unless writes of other scopes were answered meanwhile and none of this scope was. The caller holds mu.
func (w *W) scopeFailed(x *write, started, now time.Time, o outcome, err error) (general bool) {
	if o.verdict == timedOut {
		_, _, leaf := w.scopes.path(x)
		general = w.lastAnswer.Before(started) || leaf != nil && leaf.answered.After(started)
	}
	x.failing = true
	down, begun := w.scopes.failed(x, o.after, now)
	if begun {
		w.log.Warn("API server does not carry out some writes; they wait", down.attrs("err", err)...)
	}
	if !w.purging {
		w.purging = true
		w.purgeScopes()
	}
	return general
}

// tend sets a timer after which a write asks whether the scope that holds x up is back, if writes wait in it and none asks. It is
// called whenever a write of the scope ends or begins to wait: the write that was to ask may have ended without being sent. The
// caller holds mu.
func (w *W) tend(x *write) {
	if s := w.scopes.gate(x); s != nil && s.first != nil && s.asking == nil && !s.timed {
		s.timed = true
		w.after(max(0, time.Until(s.until)), &timer{due: func() {
			s.timed = false
			w.askScope(s)
		}})
	}
}

// askScope lets one of the writes that wait in a scope ask whether it is back. The caller holds mu.
func (w *W) askScope(s *scope) {
	if s.asking != nil {
		return // tend is called when that one ends
	}
	if s.first != nil && time.Now().Before(s.until) {
		w.tend(s.first) // another has asked meanwhile
		return
	}
	x := w.scopes.unpark(s)
	for x != nil && x.status != nil && x.status.write != x { // void
		x = w.scopes.unpark(s)
	}
	if x != nil {
		w.queue.pushFront(x)
	}
}

// purgeScopes forgets scopes that nothing happens in, as long as there are any. The caller holds mu.
func (w *W) purgeScopes() {
	w.after(scopeRest, &timer{due: func() {
		w.scopes.rest(time.Now())
		if w.purging = len(w.scopes.all) > 0; w.purging {
			w.purgeScopes()
		}
	}})
}

// attrs describes a scope in the log.
func (at *scope) attrs(more ...any) []any {
	of := "everything"
	if at.key.resource != "" {
		of = at.key.resource
		if at.key.group != "" {
			of += "." + at.key.group
		}
	}
	attrs := []any{"resource", of}
	if at.key.verb != "" {
		attrs = append(attrs, "verb", at.key.verb, "namespace", at.key.namespace)
	}
	return append(attrs, more...)
}
