package apiwriter

import (
	"math"
	"time"
)

// limiter finds how many requests in flight get the most writes per second out of the server. Too few leave it idle,
// too many make it slower; where the best is depends on the server, its load, and the distance to it, and all three
// change. The limiter therefore asks the only one who knows, by experiment:
//
//	        ┌─ grows until the rate has fallen ─────────┐
//	ramp ───┤                                           ├──▶ steady
//	        └─ if the first, a guess, was best: halves ─┘
//
//	steady: base, base·s, base, base/s, base, …    one window of measurement each
//
// On the way up each request that ends lets one more begin than ended: the limit doubles in a round trip, and the server
// is not handed a burst. It is measured as it grows, because to stop for that at each step takes several times as long, in
// which a server that wants much in flight does little.
//
// The way up ends where the rate has fallen without doubt, and not before. A busy server's speed changes by a factor of
// two and more from one half second to the next for reasons of its own: its disk, its garbage, whoever reacts to what was
// written. To stop for that costs most, since a server that queues what it cannot do at once takes little harm from more
// in flight, and the way down is found later. So the noise is measured, too.
//
// After a pause it climbs again from where it was: what was measured on little work says nothing about much. It does not
// look below that at once: a server often starts slowly after a pause, and each step down would seem to be what made it
// faster. The steady probes, which a server that gets faster by itself does not deceive, find the way down if there is one.
//
// A probe is compared with the base windows on both sides of it, so a server that gets slower or faster for everyone
// does not count as an answer. Answers add up until their mean is clear of the noise, which is measured too. A direction
// that was clearly wrong is asked less and less often.
//
// Refusals (429) and timeouts are no experiment: they cut the limit at once and leave a ceiling that rises slowly.
//
// The server ends a watch before its time when the watch's buffer, of ten to a hundred changes, has run over because bursts of
// requests kept its processors busy. Whoever follows the watch then learns of nothing for a second or more, and what it
// does after that is the next burst. So for a while after such an end few writes are in flight at once (polite), which takes the
// bursts longer and everything together less. With a long queue it is the writes that everybody waits for, and the limit is as
// ever.
//
// A limiter is pure: it knows what time it is only from its arguments. It is not safe for concurrent use.
type limiter struct {
	fixed    int // pins the limit when not zero
	max      int
	ceiling  float64   // no limit above it, after an overload
	polite   time.Time // until then, unless deep, no more than politeLimit are in flight
	deep     bool      // since writes last waited for nothing, politeQueue of them have waited at once
	lastCut  time.Time
	base     float64 // the best limit known
	now      float64 // the limit that is tried: base, or a probe
	grown    float64 // the limit in force, on its way up to now
	phase    phase
	dir      int // of the current probe: +1, -1, or 0 at base
	rtt      float64
	win      window
	settling settling

	rampStart float64   // the limit that the ramp began with
	rampRate  float64   // the best rate of the ramp, which was at base
	rampError float64   // and its standard error, relative to it
	level     float64   // the last limit of the ramp that may be as good as base
	gave      gave      // what the limit in force gave so far, on the way up
	flat      int       // steps down in a row that brought nothing
	learned   bool      // base is more than a guess: a ramp has ended at it, or one before it
	gained    bool      // the step up to base was clearly one to the better
	busy      time.Time // when writes last waited for their turn
	before    float64   // log rate of the base window before the current probe
	probed    float64   // log rate of the current probe, waiting for the base window after it
	pending   int       // direction of probed; 0 when none waits
	noise     variance
	within    float64    // the same as noise, told from inside of windows
	lately    [2]float64 // log rates of the last two windows of the ramp, the last one last
	up, down  evidence
}

type phase int

const (
	rampFirst phase = iota // measuring the first limit
	rampUp
	rampDown
	steady
)

// evidence is what probes in one direction have shown: the mean of the log of probed rate over base rate.
type evidence struct {
	mean     float64
	n        float64
	every    int // ask once in this many base windows
	sinceAsk int
}

// window is one measurement of the rate at one limit.
type window struct {
	start time.Time
	ended int
	// For the error of the rate: how long each batch of requests took to end.
	batchStart    time.Time
	batches       int
	sums, squares float64 // of the batches' durations, in seconds
}

// windowBatch is how many requests make a batch.
const windowBatch = 8

// add counts a request that ended at now.
func (w *window) add(now time.Time) {
	if w.ended == 0 {
		w.batchStart = w.start
	}
	if w.ended++; w.ended%windowBatch == 0 {
		d := now.Sub(w.batchStart).Seconds()
		w.batches, w.sums, w.squares, w.batchStart = w.batches+1, w.sums+d, w.squares+d*d, now
	}
}

// err is the standard error of the window's rate, relative to it, from how much its batches differ. It is 1 for a window
// that says nothing.
func (w *window) err() float64 {
	n := float64(w.batches)
	if n < 2 || w.sums == 0 {
		return 1
	}
	mean := w.sums / n
	variance := math.Max(w.squares/n-mean*mean, 0) * n / (n - 1)
	return math.Min(math.Sqrt(variance/n)/mean, 1)
}

// gave is what a limit gave, in one window or several.
type gave struct{ windows, sum, squares float64 }

// add takes in the logarithm of a window's rate, and the rate's standard error, relative to it.
func (g *gave) add(rate, relative float64) {
	g.windows, g.sum, g.squares = g.windows+1, g.sum+rate, g.squares+relative*relative
}

func (g *gave) rate() float64     { return g.sum / g.windows } // the logarithm of it
func (g *gave) variance() float64 { return g.squares / g.windows }

// variance is that of the logarithm of a window's rate, from window to window, where the limit has no part in it. It is
// more than what is seen inside a window.
type variance struct{ sum, n float64 }

func (v *variance) add(squared float64) {
	if v.n < noiseMemory {
		v.n++
	} else {
		v.sum *= 1 - 1.0/noiseMemory
	}
	v.sum += squared
}

func (v *variance) mean() float64 {
	if v.n == 0 {
		return 0
	}
	return v.sum / v.n
}

// settling is the time after a change of the limit until requests of the old limit no longer count.
type settling struct {
	active bool
	until  time.Time
	down   bool // wait until no more than the limit are in flight
}

const (
	limitStart = 32
	limitMax   = MostInFlight

	windowMin     = 100 * time.Millisecond
	windowMax     = time.Second
	windowSamples = 40
	windowFew     = 10
	windowRush    = 30 * time.Millisecond // a window of the ramp may be this short when it has windowSure answers
	windowSure    = 100

	windowAgain = 200 * time.Millisecond // a window that measures again is at least this long

	noiseMemory = 16 // windows

	rampStep   = 1.41 // up
	rampDrop   = 2    // down
	steadyStep = 2
	tooSlow    = 0.75 // a step up that leaves no more than this is judged early

	grownTrips = 0.85 // after a step up has grown, what ends within so many round trips was held up by the growth

	rampGain    = 0.03 // what a step of the ramp must bring to count as one that helped
	rampSlack   = 0.10 // what it must cost (log) to end the ramp: the next would cost more
	rampLevel   = 0.8  // a step that brings nothing counts as level with the best if it is not worse by so many errors
	rampDoubt   = 1.5  // a step up that costs more than so many errors is measured again,
	rampLost    = 1.0  // unless it loses this much (log),
	rampWindows = 2    // for so many windows in all,
	rampSure    = 2.5  // and fell if it costs more than so many;
	rampFell    = 2    // a step down, more than so many
	rampClear   = 3    // a step that brings more than so many errors brought something without any doubt
	rampFlat    = 2    // so many steps down in a row that do not help end it too

	pause = time.Second // without waiting writes for this long, what is known is old

	gainUp   = 0.01 // a higher limit must be better by this much (log)
	gainDown = 0.02 // a lower limit, likewise
	memory   = 12   // probes that count in a mean

	politeTime  = 30 * time.Second
	politeLimit = 64
	politeQueue = MostInFlight * 3 / 2 // more than may be in flight; less than a large gang has waiting

	everyMax = 32
	askLate  = 8    // for the way back down after a ramp whose last step was better without any doubt, or in much noise
	noisy    = 0.04 // much noise: a variance above it is one that few probes cannot tell through
	dear     = 0.3  // a probe that loses this much (log) is dear
)

// newLimiter returns a limiter that stays at fixed, or, when fixed is 0, adapts between 1 and max.
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

// limit is how many requests may be in flight at now.
func (l *limiter) limit(now time.Time) int {
	if l.fixed > 0 {
		return l.fixed
	}
	if l.held(now) {
		return politeLimit
	}
	return int(math.Round(l.grown))
}

// ended tells the limiter of a request that ended at now after latency. inFlight is how many others are in flight, and
// waiting says whether more writes wait for their turn: without any, the rate says nothing about the limit.
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
		l.settle(now, false) // the first requests open connections
	} else {
		l.rtt += (latency.Seconds() - l.rtt) / math.Max(16, l.grown/8)
	}
	if !waiting || l.held(now) {
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
	if s := &l.settling; s.active {
		if s.down && inFlight >= l.limit(now) {
			return
		}
		if s.down { // drained: one round trip at the new limit, and then it counts
			s.down = false
			s.until = now.Add(l.roundTrips(1))
		}
		if now.Before(s.until) {
			return
		}
		l.settling.active = false
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

// hasGrown acts on the end of a step up. The ramp's window was the growth itself, and goes on without growth if that was
// too short to judge.
func (l *limiter) hasGrown(now time.Time) {
	if l.phase != rampUp {
		l.settling = settling{active: true, until: now.Add(l.roundTrips(grownTrips))}
	} else if length := now.Sub(l.win.start); l.enough(length) {
		l.close(now, length)
	}
}

// close ends the window, which is of this length.
func (l *limiter) close(now time.Time, length time.Duration) {
	rate, relative := float64(l.win.ended)/length.Seconds(), l.win.err()
	l.win = window{start: now}
	l.measured(now, rate, relative)
}

// enough says whether a window of this length can be judged.
func (l *limiter) enough(length time.Duration) bool {
	if l.phase == rampUp && l.gave.windows == 0 && l.win.ended >= windowSamples && length >= windowRush {
		return true
	}
	if length < l.roundTrips(1) || l.gave.windows > 0 && length < windowAgain {
		return false
	}
	if l.phase != steady && l.win.ended >= windowSure && length >= windowRush {
		return true
	}
	return length >= windowMin && (l.win.ended >= windowSamples || length >= windowMax)
}

// tooFar says whether a step up was clearly one too many. That shows early, and waiting longer costs most.
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

// measured acts on the rate that the limit in force gave in one window. relative is the rate's standard error.
func (l *limiter) measured(now time.Time, rate, relative float64) {
	l.ceiling = math.Min(l.ceiling*1.01, float64(l.max))
	l.within += (relative*relative - l.within) / 8
	if l.phase != steady {
		// What the limit does to the rate it does steadily: what departs from a straight line is not its doing.
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
		l.climb(now, math.Max(l.now*rampStep, l.now+1))
	case rampUp:
		l.judgeUp(now, rate, relative)
	case rampDown:
		l.judgeDown(now, rate, relative)
	case steady:
		l.steady(now, math.Log(rate))
	}
}

// judgeUp takes in the rate that a step up of the ramp gave, and goes on or ends the way up. A rate that may be a fall is
// measured again.
func (l *limiter) judgeUp(now time.Time, rate, relative float64) {
	g, noise := &l.gave, l.noise.mean()
	g.add(math.Log(rate), relative)
	gain := g.rate() - math.Log(l.rampRate)
	err := math.Sqrt(math.Max(g.variance(), noise)/g.windows + math.Max(l.rampError*l.rampError, noise))
	switch {
	case gain > rampGain:
		l.better(math.Exp(g.rate()), relative)
		l.gained = gain > rampClear*err
	case gain < -math.Max(rampSlack, rampDoubt*err) && gain > -rampLost && g.windows < rampWindows:
		return
	case gain < -math.Max(rampSlack, rampSure*err):
		l.turn(now)
		return
	case gain > -rampLevel*err:
		l.level = l.now
	}
	*g = gave{}
	l.climb(now, math.Max(l.now*rampStep, l.now+1))
}

// judgeDown likewise for a step down.
func (l *limiter) judgeDown(now time.Time, rate, relative float64) {
	gain, err := math.Log(rate/l.rampRate), math.Hypot(relative, l.rampError)
	switch {
	case gain > rampGain:
		l.better(rate, relative)
		l.flat = 0
	case gain < -math.Max(rampSlack, rampFell*err):
		l.turn(now)
		return
	default:
		if gain+err < rampGain {
			l.flat++
		}
		if l.flat == rampFlat {
			l.turn(now)
			return
		}
	}
	l.climb(now, math.Min(l.now/rampDrop, l.now-1))
}

// better makes the limit in force the best of the ramp.
func (l *limiter) better(rate, relative float64) {
	l.base, l.rampRate, l.rampError, l.level = l.now, rate, relative, l.now
}

// climb takes one more step of the ramp to limit, or ends it at the end of the range.
func (l *limiter) climb(now time.Time, limit float64) {
	if !l.step(now, limit) {
		l.turn(now)
	}
}

// turn ends the way up. If it led nowhere, the way down is next.
func (l *limiter) turn(now time.Time) {
	l.flat = 0
	if l.level > l.base {
		l.base, l.gained = l.level, false
	}
	if l.phase == rampUp && l.base == l.rampStart && !l.learned {
		l.phase, l.lately = rampDown, [2]float64{}
		if l.step(now, l.base/rampDrop) {
			return
		}
	}
	l.arrive(now)
}

// ramp begins a ramp at base.
func (l *limiter) ramp(now time.Time) {
	l.phase, l.flat, l.lately = rampFirst, 0, [2]float64{}
	l.forget()
	l.step(now, l.base)
}

// arrive ends the ramp at base.
func (l *limiter) arrive(now time.Time) {
	below := l.phase == rampDown && l.base < l.rampStart
	l.phase, l.learned = steady, true
	l.forget()
	if below {
		l.up.every = askLate // it has just come from there
	}
	if l.gained || l.noise.mean() > noisy {
		l.down.every, l.gained = askLate, false // the ramp has just answered it, or a few probes will not
	}
	l.step(now, l.base)
}

func (l *limiter) steady(now time.Time, rate float64) {
	if l.dir != 0 { // a probe ended: back to base, for the other half of the comparison
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
	l.up.sinceAsk++
	l.down.sinceAsk++
	// Ask in the direction that is most overdue.
	upDue := l.up.sinceAsk - l.up.every
	downDue := l.down.sinceAsk - l.down.every
	if upDue >= 0 && upDue >= downDue {
		l.up.sinceAsk = 0
		if l.step(now, math.Max(l.base*steadyStep, l.base+1)) {
			l.dir = +1
		}
		return
	}
	if downDue >= 0 {
		l.down.sinceAsk = 0
		if l.step(now, math.Min(l.base/steadyStep, l.base-1)) {
			l.dir = -1
		}
	}
}

// answer adds the finished probe, compared with the base windows before and after it, to the evidence.
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

// move changes base when the evidence is clear, and says whether it did.
func (l *limiter) move(now time.Time) bool {
	// The error of a mean of n comparisons, each of one window with the mean of two.
	clear := func(e *evidence) float64 { return math.Sqrt(1.5 * max(l.noise.mean(), l.within, 0.0004) / e.n) }
	if e := &l.up; e.n > 0 {
		se := clear(e)
		if e.mean-se > gainUp {
			return l.settleAt(now, math.Max(l.base*steadyStep, l.base+1), &l.down)
		}
		e.patience(e.mean+2*se, gainUp)
	}
	if e := &l.down; e.n > 0 {
		se := clear(e)
		if e.mean-se > gainDown {
			return l.settleAt(now, math.Min(l.base/steadyStep, l.base-1), &l.up)
		}
		e.patience(e.mean+2*se, gainDown)
	}
	return false
}

// settleAt makes limit the base. What is known of the way back is that it was worse, so it is asked less at first.
func (l *limiter) settleAt(now time.Time, limit float64, back *evidence) bool {
	l.base = l.clamp(limit)
	l.forget()
	back.every = 4
	l.step(now, l.base)
	return true
}

// patience lengthens the time until a direction is asked again when it was clearly wrong, the more the more it costs to
// ask. most is the best that the direction may be.
func (e *evidence) patience(most, gain float64) {
	if e.sinceAsk > 1 {
		return // not the direction that was just asked
	}
	switch {
	case most < -dear:
		e.every = min(e.every*8, everyMax)
	case most < gain:
		e.every = min(e.every*2, everyMax)
	default:
		e.every = max(e.every/2, 2)
	}
}

// forget drops what is known about the neighbours of base.
func (l *limiter) forget() {
	l.gave = gave{}
	l.up, l.down = evidence{every: 2}, evidence{every: 2, sinceAsk: 1}
	l.dir, l.pending, l.before = 0, 0, 0
}

// step puts a limit in force and says whether that is another than before.
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
	l.settle(now, true)
	return true
}

func (l *limiter) settle(now time.Time, down bool) {
	l.settling = settling{active: true, down: down, until: now.Add(l.roundTrips(1))}
}

// restart begins the current window anew after something that was not the limit's doing.
func (l *limiter) restart(now time.Time) {
	if l.phase == steady {
		l.dir, l.pending, l.before = 0, 0, 0
		l.now = l.base
		l.grown = math.Min(l.grown, l.now)
	}
	l.settle(now, false)
}

// cut lowers the limit at once by factor, at most once per round trip, whose other requests tell the same.
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

// watchEnded says that the server has ended a watch before its time.
func (l *limiter) watchEnded(now time.Time) { l.polite = now.Add(politeTime) }

// waits says how many writes wait for their turn.
func (l *limiter) waits(n int) {
	switch {
	case n == 0:
		l.deep = false
	case n >= politeQueue:
		l.deep = true
	}
}

// held says that the limit is lower than what is known to be best.
func (l *limiter) held(now time.Time) bool {
	return l.fixed == 0 && !l.deep && l.grown > politeLimit && now.Before(l.polite)
}

func (l *limiter) clamp(limit float64) float64 {
	return math.Max(1, math.Min(limit, math.Min(l.ceiling, float64(l.max))))
}

func (l *limiter) roundTrips(n float64) time.Duration {
	return time.Duration(n * l.rtt * float64(time.Second))
}
