package apiwriter

import "time"

// observe updates the outage and the breakers after a request for x. started is the time when the
// request was sent. general reports whether the result also counts for the limiter, and so for the
// rate of all writes. The caller holds mu.
func (w *core) observe(x *write, started, now time.Time, o outcome, err error) (general bool) {
	w.breakers.probeEnded(x)
	if w.stopped {
		return false // requests end because the writer ends them
	}
	if o.verdict == unavailable && !o.partial {
		w.unreachable(now, o, err)
		return true
	}
	w.reached(now)
	switch {
	case o.partial:
		return w.breakerFailed(x, started, now, o, err)
	case o.verdict == overloaded:
		return true // an overload says nothing about the breaker
	}
	w.lastAnswer = now
	for _, back := range w.breakers.answered(x, now) {
		w.log.Info("API server carries out these writes again",
			back.attrs("away", now.Sub(back.opened).Round(time.Millisecond))...)
		for waiting := w.breakers.dequeue(back); waiting != nil; waiting = w.breakers.dequeue(back) {
			w.queue.push(waiting)
		}
	}
	return true
}

// unreachable records a request without a response. The caller holds mu.
func (w *core) unreachable(now time.Time, o outcome, err error) {
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
	w.after(c.until.Sub(now), func() {})
}

// reached records that the server has responded. The caller holds mu.
func (w *core) reached(now time.Time) {
	w.answered = true
	if w.outage.answered(now) {
		w.log.Info("API server answers again", "away", now.Sub(w.outage.opened).Round(time.Millisecond), "waiting",
			w.queue.len)
	}
}

// breakerFailed records a failure of a write's breaker. general reports whether the failure also
// counts for the limiter. Only a timeout does, and only if no write of any breaker was answered
// since the request was sent, or a write of the same breaker was. The caller holds mu.
func (w *core) breakerFailed(x *write, started, now time.Time, o outcome, err error) (general bool) {
	if o.verdict == timedOut {
		_, _, leaf := w.breakers.path(x)
		general = w.lastAnswer.Before(started) || leaf != nil && leaf.lastAnswer.After(started)
	}
	x.failing = true
	down, begun := w.breakers.failed(x, o.after, now)
	if begun {
		w.log.Warn("API server does not carry out some writes; they wait", down.attrs("err", err)...)
	}
	if !w.expiring {
		w.expiring = true
		w.expireBreakers()
	}
	return general
}

// scheduleProbe sets a timer for the next probe of the breaker that blocks x, if writes wait in
// that breaker and none of them is a probe. scheduleProbe is called whenever a write of the breaker
// ends or begins to wait, because the write chosen as the probe may have ended without being sent.
// The caller holds mu.
func (w *core) scheduleProbe(x *write) {
	if s := w.breakers.widestOpen(x); s != nil && s.first != nil && s.probe == nil && !s.timed {
		s.timed = true
		w.after(max(0, time.Until(s.until)), func() {
			s.timed = false
			w.sendProbe(s)
		})
	}
}

// sendProbe queues one of the writes that wait in a breaker, as a probe. The caller holds mu.
func (w *core) sendProbe(s *breaker) {
	if s.probe != nil {
		return // scheduleProbe is called when that probe ends
	}
	if s.first != nil && time.Now().Before(s.until) {
		w.scheduleProbe(s.first) // another write has probed meanwhile
		return
	}
	x := w.breakers.dequeue(s)
	for x != nil && x.status != nil && x.status.write != x { // void
		x = w.breakers.dequeue(s)
	}
	if x != nil {
		w.queue.pushFront(x)
	}
}

// expireBreakers removes idle breakers periodically while any breakers exist. The caller holds mu.
func (w *core) expireBreakers() {
	w.after(breakerIdle, func() {
		w.breakers.expire(time.Now())
		if w.expiring = len(w.breakers.all) > 0; w.expiring {
			w.expireBreakers()
		}
	})
}

// attrs returns log attributes that describe a breaker.
func (at *breaker) attrs(more ...any) []any {
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
