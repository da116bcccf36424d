package apiwriter

import (
	"math"
	"time"
)

// Thresholds of the ramp. A gain or loss is the log of the ratio of two rates, and an error is the
// standard error of that log.
const (
	rampGain    = 0.03 // minimum gain of a step that counts as an improvement
	rampSlack   = 0.10 // minimum loss that ends the ramp: the next step would lose more
	rampLevel   = 0.8  // a step that loses fewer errors than this is level with the best
	rampDoubt   = 1.5  // a step up that loses more errors than this is measured again
	rampLost    = 1.0  // a step up that loses this much is not measured again
	rampWindows = 2    // maximum number of windows in which a step up is measured
	rampSure    = 2.5  // a step up that loses more errors than this in its last window has failed
	rampFell    = 2    // a step down that loses more errors than this has failed
	rampClear   = 3    // a step that gains more errors than this is a clear gain
	rampFlat    = 2    // this many steps down in a row without a gain also end the ramp
)

// judgeUp evaluates the rate of a step up of the ramp, and continues or ends the ramp up. A rate
// that may have fallen is measured again.
func (l *limiter) judgeUp(now time.Time, rate, relative float64) {
	g, noise := &l.samples, l.noise.mean()
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
		l.endDirection(now)
		return
	case gain > -rampLevel*err:
		l.level = l.now
	}
	*g = rateSamples{}
	l.nextStep(now, math.Max(l.now*rampStep, l.now+1))
}

// judgeDown evaluates the rate of a step down of the ramp, and continues or ends the ramp down.
func (l *limiter) judgeDown(now time.Time, rate, relative float64) {
	gain, err := math.Log(rate/l.rampRate), math.Hypot(relative, l.rampError)
	switch {
	case gain > rampGain:
		l.better(rate, relative)
		l.flat = 0
	case gain < -math.Max(rampSlack, rampFell*err):
		l.endDirection(now)
		return
	default:
		if gain+err < rampGain {
			l.flat++
		}
		if l.flat == rampFlat {
			l.endDirection(now)
			return
		}
	}
	l.nextStep(now, math.Min(l.now/rampDrop, l.now-1))
}

// better makes the limit in force the best limit of the ramp.
func (l *limiter) better(rate, relative float64) {
	l.base, l.rampRate, l.rampError, l.level = l.now, rate, relative, l.now
}

// nextStep takes the next step of the ramp, to limit, or ends the ramp if limit is outside the range.
func (l *limiter) nextStep(now time.Time, limit float64) {
	if !l.step(now, limit) {
		l.endDirection(now)
	}
}

// endDirection ends the ramp in the current direction. If the first ramp up brought no gain, a ramp down
// follows.
func (l *limiter) endDirection(now time.Time) {
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
	l.endRamp(now)
}

// ramp begins a ramp at base.
func (l *limiter) ramp(now time.Time) {
	l.phase, l.flat, l.lately = rampFirst, 0, [2]float64{}
	l.forget()
	l.step(now, l.base)
}

// endRamp ends the ramp at base.
func (l *limiter) endRamp(now time.Time) {
	below := l.phase == rampDown && l.base < l.rampStart
	l.phase, l.learned = steady, true
	l.forget()
	if below {
		l.up.every = probeLate // the ramp has just come from above
	}
	if l.gained || l.noise.mean() > noisy {
		l.down.every, l.gained = probeLate, false // known from the ramp, or too noisy to probe
	}
	l.step(now, l.base)
}
