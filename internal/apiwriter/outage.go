package apiwriter

import "time"

// observe updates the outage and the scopes after a request for x. started is the time when the
// request was sent. general reports whether the result also counts for the limiter, and so for the
// rate of all writes. The caller holds mu.
func (w *W) observe(x *write, started, now time.Time, o outcome, err error) (general bool) {
	w.scopes.stopped(x)
	if w.stopped {
		return false // requests end because the writer ends them
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
		return true // an overload says nothing about the scope
	}
	w.lastAnswer = now
	for _, back := range w.scopes.answered(x, now) {
		w.log.Info("API server carries out these writes again", back.attrs("away", now.Sub(back.opened).Round(time.Millisecond))...)
		for waiting := w.scopes.unpark(back); waiting != nil; waiting = w.scopes.unpark(back) {
			w.queue.push(waiting)
		}
	}
	return true
}

// unreachable records a request without a response. The caller holds mu.
func (w *W) unreachable(now time.Time, o outcome, err error) {
	c := &w.outage
	switch {
	case c.open && now.Before(c.until):
		return // sent before the outage was noticed
	case c.open:
		c.wait(0, now)
	default:
		if c.failed++; o.applied && c.failed < outageAfter {
			return
		}
		c.trip(0, now)
		w.log.Warn("API server does not answer; writes wait", "err", err, "waiting", w.queue.len)
	}
	w.after(c.until.Sub(now), &timer{due: func() {}})
}

// reached records that the server has responded. The caller holds mu.
func (w *W) reached(now time.Time) {
	w.answered = true
	if w.outage.answered(now) {
		w.log.Info("API server answers again", "away", now.Sub(w.outage.opened).Round(time.Millisecond), "waiting", w.queue.len)
	}
}

// scopeFailed records a failure of a write's scope. general reports whether the failure also counts
// for the limiter. Only a timeout does, and only if no write of any scope was answered since the
// request was sent, or a write of the same scope was. The caller holds mu.
func (w *W) scopeFailed(x *write, started, now time.Time, o outcome, err error) (general bool) {
	if o.verdict == timedOut {
		_, _, leaf := w.scopes.path(x)
		general = w.lastAnswer.Before(started) || leaf != nil && leaf.lastAnswer.After(started)
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

// tend sets a timer for the next probe of the scope that blocks x, if writes wait in that scope and
// none of them is a probe. tend is called whenever a write of the scope ends or begins to wait,
// because the write chosen as the probe may have ended without being sent. The caller holds mu.
func (w *W) tend(x *write) {
	if s := w.scopes.gate(x); s != nil && s.first != nil && s.asking == nil && !s.timed {
		s.timed = true
		w.after(max(0, time.Until(s.until)), &timer{due: func() {
			s.timed = false
			w.askScope(s)
		}})
	}
}

// askScope queues one of the writes that wait in a scope, as a probe. The caller holds mu.
func (w *W) askScope(s *scope) {
	if s.asking != nil {
		return // tend is called when that probe ends
	}
	if s.first != nil && time.Now().Before(s.until) {
		w.tend(s.first) // another write has probed meanwhile
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

// purgeScopes removes idle scopes periodically while any scopes exist. The caller holds mu.
func (w *W) purgeScopes() {
	w.after(scopeRest, &timer{due: func() {
		w.scopes.rest(time.Now())
		if w.purging = len(w.scopes.all) > 0; w.purging {
			w.purgeScopes()
		}
	}})
}

// attrs returns log attributes that describe a scope.
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
