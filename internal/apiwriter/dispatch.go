package apiwriter

import (
	"context"
	"errors"
	"time"
)

// dispatch starts as many requests as the limit allows. The caller holds mu.
func (w *core) dispatch() {
	for {
		x := w.nextWrite()
		if x == nil {
			return
		}
		w.inFlight++
		select {
		case w.idleWorker <- x:
		default:
			w.workers.Go(func() { w.work(x) })
		}
	}
}

// idleWorkersMax is the maximum number of idle workers kept: a new goroutine must first grow its
// stack.
const idleWorkersMax = 16

// await returns the next write for an idle worker, or nil if there are enough idle workers or the
// writer stops.
func (w *core) await() *write {
	w.mu.Lock()
	if w.stopped || w.idleWorkers >= idleWorkersMax {
		w.mu.Unlock()
		return nil
	}
	w.idleWorkers++
	w.mu.Unlock()
	var x *write
	select {
	case x = <-w.idleWorker:
	case <-w.stopping:
	}
	w.mu.Lock()
	w.idleWorkers--
	w.mu.Unlock()
	return x
}

// nextWrite returns the write whose turn it is, or nil if none waits or no more may be in flight.
// The caller holds mu.
func (w *core) nextWrite() *write {
	w.limiter.waits(w.queue.len - w.queue.classes[ClassStatus].len - w.queue.classes[ClassEvent].len)
	if !w.running || w.stopped || w.queue.len == 0 {
		return nil
	}
	now := time.Now()
	limit := w.limiter.limit(now)
	w.sender.expect(limit)
	if !w.answered {
		// Go's HTTP/2 opens a connection per request if none is open: the first request opens one
		// for all
		limit = 1
	}
	if w.outage.open {
		if now.Before(w.outage.until) {
			return nil
		}
		limit = 1 // probe whether the server is back
	}
	if w.inFlight >= limit {
		return nil
	}
	x := w.pop(w.throttle.last(now, limit))
	for x != nil && !w.breakers.admit(x, now) {
		w.scheduleProbe(x)
		x = w.pop(w.throttle.last(now, limit))
	}
	if x == nil {
		w.dispatchLater()
		return nil
	}
	w.throttle.started(x, now)
	w.metrics.waited(x.class, now.Sub(x.queued))
	if x.status != nil {
		x.status.begin(x)
	}
	return x
}

// pop removes and returns the next write of the classes up to last. The caller holds mu.
func (w *core) pop(last Class) *write {
	for {
		x := w.queue.pop(last)
		if x == nil || x.status == nil || x.status.write == x {
			return x
		}
		w.scheduleProbe(x) // a void status may have been the probe of its breaker
	}
}

// dispatchLater sets a timer so that writes that give way to pods are considered again. The caller
// holds mu.
func (w *core) dispatchLater() {
	if w.throttle.timer {
		return
	}
	w.throttle.timer = true
	w.after(throttleTime, func() { w.throttle.timer = false })
}

// throttleTime is the time after the start of a pod's write in which further pods are expected.
const throttleTime = 500 * time.Millisecond

// lowMax is the maximum number of low-priority writes in flight. If all writes that waited for the
// pods, such as the statuses of hundreds of jobs, were sent at once, they would delay the next pods
// by a second.
const lowMax = 128

// lowPriorityThrottle makes low-priority writes give way to pods. The order of the queue is not
// enough: a fast manager has no queue, and each other request beside the creates of pods makes a
// busy server slower for them. So while pods are being written, only a few statuses and events are
// in flight, and the others coalesce until there is room.
type lowPriorityThrottle struct {
	pods  time.Time // when the last write of a pod began
	low   int       // low-priority writes in flight
	timer bool      // the timer of dispatchLater is set
}

// last returns the last class that may be written now.
func (y *lowPriorityThrottle) last(now time.Time, limit int) Class {
	if y.low >= lowMax || y.low >= max(1, limit/32) && now.Sub(y.pods) < throttleTime {
		return ClassStart
	}
	return ClassEvent
}

func (y *lowPriorityThrottle) started(x *write, now time.Time) {
	if x.class == ClassPods {
		y.pods = now
	}
	if x.class > ClassStart {
		y.low++
	}
}

func (y *lowPriorityThrottle) ended(x *write) {
	if x.class > ClassStart {
		y.low--
	}
}

// work carries out x and then the next writes, until the limit is reached or there are enough idle
// workers.
func (w *core) work(x *write) {
	for x != nil {
		started := time.Now()
		ctx, cancel := context.WithTimeout(w.requests, w.timeout(x))
		obj, err := w.sender.attempt(ctx, x)
		cancel()
		ended := time.Now()

		w.mu.Lock()
		w.inFlight--
		w.throttle.ended(x)
		o := classify(err, w.outage.recovering(ended) || w.breakers.recovering(x, ended) || x.deniedForNow(err, ended))
		if o.verdict == termLapsed || errors.Is(err, ErrFenced) || errors.Is(err, errSeen) {
			w.breakers.probeEnded(x) // the result says nothing about the server
		} else {
			// How long a request about many pods takes says nothing about others.
			many := x.verb == verbDeletePods
			if w.observe(x, started, ended, o, err) && (!many || o.verdict != succeeded) {
				w.limiter.ended(ended, ended.Sub(started), w.inFlight, w.queue.len > 0, o.verdict)
			}
			if x.class < ClassStart && !x.failing && !many {
				w.latency.ended(ended, ended.Sub(x.queued))
			}
		}
		ends := w.settle(x, obj, err, o)
		w.scheduleProbe(x)
		if x = w.nextWrite(); x != nil {
			w.inFlight++
			w.dispatch() // the limit may have grown
		}
		w.mu.Unlock()
		for _, end := range ends {
			end()
		}
		if x == nil {
			x = w.await()
		}
	}
}

// timeoutMany is the timeout of a request about many pods: how long API servers work on a request by
// default.
const timeoutMany = time.Minute

func (w *core) timeout(x *write) time.Duration {
	if x.verb == verbDeletePods {
		return max(timeoutMany, w.cfg.RequestTimeout)
	}
	return w.cfg.RequestTimeout
}

// settle ends x, or schedules another attempt. It returns functions to call without the lock.
func (w *core) settle(x *write, obj Object, err error, o outcome) []func() {
	x.applied = x.applied || o.applied
	if seen := x.seen.Load(); err != nil && seen != nil {
		return w.ended(x, seen, nil)
	}
	if o.verdict == succeeded || o.verdict == refused {
		return w.ended(x, obj, err)
	}
	if w.stopped {
		return w.ended(x, nil, ErrStopped)
	}
	w.metrics.retried(o)
	if o.verdict == termLapsed {
		w.retry(x, termRetry)
		return nil
	}
	if w.outage.open {
		// All writes wait for the server; none needs a backoff of its own.
		w.queue.pushFront(x)
		return nil
	}
	if gate := w.breakers.widestOpen(x); gate != nil {
		w.breakers.enqueue(gate, x)
		return nil
	}
	wait := backoff(x.attempts, o.after)
	x.attempts++
	w.retry(x, wait)
	return nil
}

// retry queues x again after wait. The caller holds mu.
func (w *core) retry(x *write, wait time.Duration) {
	w.retries[x] = struct{}{}
	w.after(wait, func() {
		delete(w.retries, x)
		w.queue.pushFront(x)
	})
}
