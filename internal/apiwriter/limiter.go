package apiwriter

import (
	"math"
	"time"
)

// limiter finds the number of requests in flight with the highest rate of writes. Too few requests
// leave the server idle, and too many slow it down. The optimum depends on the server, its load and
// the network latency, which all change, so the limiter measures it by experiment:
//
//	        ┌─ grows until the rate has fallen ───────────────────┐
//	ramp ───┤                                                     ├──▶ steady
//	        └─ if the first limit, a guess, was the best: halves ─┘
//
//	steady: base, base·s, base, base/s, base, …    one measurement window each
//
// While the ramp goes up, each request that ends allows one more request than ended: the limit
// doubles per round trip, and the server never receives a burst. The rate is measured during the
// growth, because a pause for measurement at each step takes several times as long, during which a
// server that needs many requests in flight is mostly idle.
//
// The ramp up ends only when the rate has clearly fallen. The speed of a busy server changes by a
// factor of two and more from one half second to the next for reasons unrelated to the limit: disk,
// garbage collection, clients that react to the writes. A ramp that stops because of such a change
// costs the most, since a server that queues excess requests suffers little from more requests in
// flight, and the steady probes find the way down later. Therefore the noise is measured, too.
//
// After a pause the limiter ramps up again from base: measurements under little load say nothing
// about a high load. It does not ramp down after a pause: a server often starts slowly after a
// pause, and each step down would appear to make it faster. The steady probes are not misled by a
// server that gets faster by itself, and find a lower optimum if there is one.
//
// A probe is compared with the base windows before and after it, so a server that gets slower or
// faster under any limit does not count as evidence. Evidence accumulates until its mean is clear
// of the measured noise. A direction that was clearly worse is probed less and less often.
//
// Refusals (429) and timeouts are not experiments: they cut the limit at once and leave a ceiling
// that rises slowly.
//
// The server ends a watch early when the buffer of the watch, of 10 to 100 changes, overflows
// because bursts of requests keep the server's processors busy. The client of the watch then sees
// no changes for a second or more, and its reaction causes the next burst. Therefore few writes are
// in flight at once for some time after such an end (afterWatchEnd): bursts take longer, but the
// whole load takes less time. With a long queue the writes themselves are the bottleneck, and the
// limit applies unchanged.
//
// limiter is pure: it takes the time from its arguments. It is not safe for concurrent use.
type limiter struct {
	fixed         int // if not 0, the limit is always fixed
	max           int
	ceiling       float64   // upper bound of the limit, lowered by an overload
	afterWatchEnd time.Time // until this time, unless longQueue, at most watchEndLimit requests are in flight
	longQueue     bool      // watchEndQueue writes have waited at once since the queue was last empty
	lastCut       time.Time
	base          float64 // the best limit known
	now           float64 // the target limit: base, or a probe
	grown         float64 // the limit in force, which grows up to now
	phase         phase
	dir           int // of the current probe: +1, -1, or 0 at base
	rtt           float64
	win           window
	transition    transition

	rampStart float64     // the limit at which the ramp began
	rampRate  float64     // the best rate of the ramp, measured at base
	rampError float64     // the standard error of rampRate, relative to rampRate
	level     float64     // the highest recent limit of the ramp that may be as good as base
	samples   rateSamples // measurements of the limit in force, during the ramp up
	flat      int         // steps down in a row without a gain
	learned   bool        // a ramp has ended, so base is more than a guess
	gained    bool        // the step up to base was clearly a gain
	busy      time.Time   // when writes were last waiting
	before    float64     // log rate of the base window before the current probe
	probed    float64     // log rate of the last probe, until the base window after it ends
	pending   int         // direction of probed; 0 if no probe awaits its second base window
	noise     variance
	within    float64    // like noise, but estimated from batches inside windows
	lately    [2]float64 // log rates of the last two windows of the ramp, most recent last
	up, down  probeResults
}

type phase int

const (
	rampFirst phase = iota // measuring the first limit
	rampUp
	rampDown
	steady
)

// probeResults is the result of the probes in one direction: the mean of log(probed rate / base
// rate).
type probeResults struct {
	mean       float64
	n          float64
	every      int // probe once per this many base windows
	sinceProbe int
}

// transition is the period after a change of the limit until requests of the old limit no longer
// count.
type transition struct {
	active bool
	until  time.Time
	down   bool // wait until at most the limit are in flight
}

const (
	limitStart = 32
	limitMax   = MostInFlight

	windowMin     = 100 * time.Millisecond
	windowMax     = time.Second
	windowSamples = 40
	windowFew     = 10
	// windowRush is the minimum length of a ramp window that has windowSure answers.
	windowRush = 30 * time.Millisecond
	windowSure = 100

	windowAgain = 200 * time.Millisecond // minimum length of a window that repeats a measurement

	noiseMemory = 16 // windows

	rampStep   = 1.41 // up
	rampDrop   = 2    // down
	steadyStep = 2
	tooSlow    = 0.75 // a step up that leaves at most this share of the rate is judged early

	grownTrips = 0.85 // round trips after a step up during which requests are still delayed by it

	pause = time.Second // after this long without waiting writes, measurements are out of date

	gainUp   = 0.01 // minimum gain (log) of a higher limit
	gainDown = 0.02 // minimum gain (log) of a lower limit
	memory   = 12   // maximum number of probes in a mean

	watchEndTime  = 30 * time.Second
	watchEndLimit = 64
	// watchEndQueue is more than may be in flight, and less than a large gang has waiting.
	watchEndQueue = MostInFlight * 3 / 2

	everyMax  = 32
	probeLate = 8    // base windows per probe in a direction that endRamp defers
	noisy     = 0.04 // with a variance above this, a few probes show nothing
	expensive = 0.3  // a probe that loses this much (log) is expensive
)

// newLimiter returns a limiter that stays at fixed, or that adapts between 1 and max if fixed is 0.
// A max of 0 or less means limitMax.
func newLimiter(fixed, max int) *limiter {
	if max <= 0 {
		max = limitMax
	}
	l := &limiter{fixed: fixed, max: max, base: math.Min(limitStart, float64(max))}
	l.now, l.grown = l.base, l.base
	l.ceiling = float64(max)
	l.forget()
	return l
}

// limit returns the maximum number of requests in flight at now.
func (l *limiter) limit(now time.Time) int {
	if l.fixed > 0 {
		return l.fixed
	}
	if l.lowered(now) {
		return watchEndLimit
	}
	return int(math.Round(l.grown))
}

// ended tells the limiter that a request ended at now, after latency. inFlight is the number of
// other requests in flight. waiting reports whether more writes wait for their turn: if none wait,
// the rate says nothing about the limit.
func (l *limiter) ended(now time.Time, latency time.Duration, inFlight int, waiting bool, v verdict) {
	if l.fixed > 0 {
		return
	}
	switch v {
	case overloaded:
		l.cut(now, 0.7)
		return
	case timedOut:
		l.cut(now, 0.5)
		return
	case unavailable:
		l.restart(now)
		return
	}
	if l.rtt == 0 {
		l.rtt = latency.Seconds()
		l.startTransition(now, false) // the first requests open connections
	} else {
		l.rtt += (latency.Seconds() - l.rtt) / math.Max(16, l.grown/8)
	}
	if !waiting || l.lowered(now) {
		l.restart(now)
		return
	}
	if now.Sub(l.busy) > pause && !l.busy.IsZero() {
		l.ramp(now)
	}
	l.busy = now
	if l.grown < l.now {
		l.win.add(now)
		if l.grown = math.Min(l.grown+1, l.now); l.grown == l.now {
			l.hasGrown(now)
		}
		return
	}
	if s := &l.transition; s.active {
		if s.down && inFlight >= l.limit(now) {
			return
		}
		if s.down { // drained: one round trip at the new limit, then measure
			s.down = false
			s.until = now.Add(l.roundTrips(1))
		}
		if now.Before(s.until) {
			return
		}
		l.transition.active = false
		l.win = window{start: now}
		return
	}
	l.win.add(now)
	length := now.Sub(l.win.start)
	rate := float64(l.win.ended) / length.Seconds()
	if !l.enough(length) && !l.tooFar(length, rate) {
		return
	}
	l.close(now, length)
}

// hasGrown handles the end of a step up. The window of a ramp step is the growth itself; if the
// growth was too short to judge, the window continues at the reached limit.
func (l *limiter) hasGrown(now time.Time) {
	if l.phase != rampUp {
		l.transition = transition{active: true, until: now.Add(l.roundTrips(grownTrips))}
	} else if length := now.Sub(l.win.start); l.enough(length) {
		l.close(now, length)
	}
}

// close ends the current window, whose duration is length.
func (l *limiter) close(now time.Time, length time.Duration) {
	rate, relative := float64(l.win.ended)/length.Seconds(), l.win.err()
	l.win = window{start: now}
	l.measured(now, rate, relative)
}

// enough reports whether a window of this length can be judged.
func (l *limiter) enough(length time.Duration) bool {
	if l.phase == rampUp && l.samples.windows == 0 && l.win.ended >= windowSamples && length >= windowRush {
		return true
	}
	if length < l.roundTrips(1) || l.samples.windows > 0 && length < windowAgain {
		return false
	}
	if l.phase != steady && l.win.ended >= windowSure && length >= windowRush {
		return true
	}
	return length >= windowMin && (l.win.ended >= windowSamples || length >= windowMax)
}

// tooFar reports whether a step up has clearly exceeded the optimum. This shows early, and waiting
// longer costs the most.
func (l *limiter) tooFar(length time.Duration, rate float64) bool {
	before := 0.0
	switch {
	case l.phase == rampUp:
		before = l.rampRate
	case l.phase == steady && l.dir > 0:
		before = math.Exp(l.before)
	}
	return length >= max(windowMin, l.roundTrips(0.5)) && l.win.ended >= windowFew && rate < tooSlow*before
}

// measured handles the rate of one window at the limit in force. relative is the relative standard
// error of the rate.
func (l *limiter) measured(now time.Time, rate, relative float64) {
	l.ceiling = math.Min(l.ceiling*1.01, float64(l.max))
	l.within += (relative*relative - l.within) / 8
	if l.phase != steady {
		// The limit changes the rate along a nearly straight line from window to window; a
		// departure from that line is noise.
		r := math.Log(rate)
		if l.lately[0] != 0 {
			d := r - 2*l.lately[1] + l.lately[0]
			l.noise.add(d * d / 6)
		}
		l.lately[0], l.lately[1] = l.lately[1], r
	}
	switch l.phase {
	case rampFirst:
		l.rampRate, l.rampError, l.rampStart, l.level = rate, relative, l.base, l.base
		l.phase = rampUp
		l.nextStep(now, math.Max(l.now*rampStep, l.now+1))
	case rampUp:
		l.judgeUp(now, rate, relative)
	case rampDown:
		l.judgeDown(now, rate, relative)
	case steady:
		l.steady(now, math.Log(rate))
	}
}

func (l *limiter) steady(now time.Time, rate float64) {
	if l.dir != 0 { // a probe ended: back to base, for the second half of the comparison
		l.probed, l.pending, l.dir = rate, l.dir, 0
		l.step(now, l.base)
		return
	}
	if l.pending != 0 {
		l.answer(rate)
		if l.move(now) {
			return
		}
	} else if l.before != 0 {
		d := rate - l.before
		l.noise.add(d * d / 2)
	}
	l.before = rate
	l.up.sinceProbe++
	l.down.sinceProbe++
	// Probe in the direction that is most overdue.
	upDue := l.up.sinceProbe - l.up.every
	downDue := l.down.sinceProbe - l.down.every
	if upDue >= 0 && upDue >= downDue {
		l.up.sinceProbe = 0
		if l.step(now, math.Max(l.base*steadyStep, l.base+1)) {
			l.dir = +1
		}
		return
	}
	if downDue >= 0 {
		l.down.sinceProbe = 0
		if l.step(now, math.Min(l.base/steadyStep, l.base-1)) {
			l.dir = -1
		}
	}
}

// answer adds the finished probe to the evidence, compared with the base windows before and after
// it.
func (l *limiter) answer(after float64) {
	d := after - l.before
	l.noise.add(d * d / 2)
	e := &l.up
	if l.pending < 0 {
		e = &l.down
	}
	l.pending = 0
	ratio := l.probed - (l.before+after)/2
	e.n = math.Min(e.n+1, memory)
	e.mean += (ratio - e.mean) / e.n
}

// move changes base if the evidence is clear, and reports whether it did.
func (l *limiter) move(now time.Time) bool {
	// The error of a mean of n comparisons, each of one window with the mean of two windows.
	clear := func(e *probeResults) float64 { return math.Sqrt(1.5 * max(l.noise.mean(), l.within, 0.0004) / e.n) }
	if e := &l.up; e.n > 0 {
		se := clear(e)
		if e.mean-se > gainUp {
			return l.moveTo(now, math.Max(l.base*steadyStep, l.base+1), &l.down)
		}
		e.patience(e.mean+2*se, gainUp)
	}
	if e := &l.down; e.n > 0 {
		se := clear(e)
		if e.mean-se > gainDown {
			return l.moveTo(now, math.Min(l.base/steadyStep, l.base-1), &l.up)
		}
		e.patience(e.mean+2*se, gainDown)
	}
	return false
}

// moveTo makes limit the new base. The old base is known to be worse, so its direction is probed
// less often at first.
func (l *limiter) moveTo(now time.Time, limit float64, back *probeResults) bool {
	l.base = l.clamp(limit)
	l.forget()
	back.every = 4
	l.step(now, l.base)
	return true
}

// patience lengthens the interval between probes in a direction that was clearly worse, by more if
// a probe is more expensive. most is the upper bound of the direction's gain (log).
func (e *probeResults) patience(most, gain float64) {
	if e.sinceProbe > 1 {
		return // not the direction of the last probe
	}
	switch {
	case most < -expensive:
		e.every = min(e.every*8, everyMax)
	case most < gain:
		e.every = min(e.every*2, everyMax)
	default:
		e.every = max(e.every/2, 2)
	}
}

// forget drops the evidence about limits next to base.
func (l *limiter) forget() {
	l.samples = rateSamples{}
	l.up, l.down = probeResults{every: 2}, probeResults{every: 2, sinceProbe: 1}
	l.dir, l.pending, l.before = 0, 0, 0
}

// step sets the target limit and reports whether its rounded value changed.
func (l *limiter) step(now time.Time, limit float64) bool {
	limit = l.clamp(limit)
	if math.Round(limit) == math.Round(l.now) {
		l.now = limit
		return false
	}
	l.now = limit
	if limit > l.grown { // ended lets it grow
		l.win = window{start: now}
		return true
	}
	l.grown = limit
	l.startTransition(now, true)
	return true
}

func (l *limiter) startTransition(now time.Time, down bool) {
	l.transition = transition{active: true, down: down, until: now.Add(l.roundTrips(1))}
}

// restart begins the current window again after an event that the limit did not cause.
func (l *limiter) restart(now time.Time) {
	if l.phase == steady {
		l.dir, l.pending, l.before = 0, 0, 0
		l.now = l.base
		l.grown = math.Min(l.grown, l.now)
	}
	l.startTransition(now, false)
}

// cut multiplies the limit by factor at once, at most once per round trip, because other requests
// of that round trip report the same overload.
func (l *limiter) cut(now time.Time, factor float64) {
	if now.Sub(l.lastCut) < max(windowMin, l.roundTrips(1)) {
		return
	}
	l.lastCut = now
	l.base = math.Max(1, math.Min(l.grown, l.base)*factor)
	l.ceiling = math.Max(1, l.base*1.2)
	l.phase = steady
	l.forget()
	l.step(now, l.base)
}

// watchEnded tells the limiter that the server has ended a watch early.
func (l *limiter) watchEnded(now time.Time) { l.afterWatchEnd = now.Add(watchEndTime) }

// waits tells the limiter how many writes wait for their turn.
func (l *limiter) waits(n int) {
	switch {
	case n == 0:
		l.longQueue = false
	case n >= watchEndQueue:
		l.longQueue = true
	}
}

// lowered reports whether the limit is lowered to watchEndLimit, below the best known.
func (l *limiter) lowered(now time.Time) bool {
	return l.fixed == 0 && !l.longQueue && l.grown > watchEndLimit && now.Before(l.afterWatchEnd)
}

func (l *limiter) clamp(limit float64) float64 {
	return math.Max(1, math.Min(limit, math.Min(l.ceiling, float64(l.max))))
}

func (l *limiter) roundTrips(n float64) time.Duration {
	return time.Duration(n * l.rtt * float64(time.Second))
}
