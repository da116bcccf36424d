package analyse

import (
	"math"
	"time"
)

// Contention describes how two streams of writes share the server: pods that are CREATED, and pods
// that are SCHEDULED by a later write. Nothing of it says that one is the cause of the other.
type Contention struct {
	// StepSeconds is the width of the steps in which both streams were counted, from the first
	// CREATED until the last. Steps is their number.
	StepSeconds float64 `json:"stepSeconds"`
	Steps       int     `json:"steps"`
	// Correlation is Pearson's coefficient of the counts of both streams, and Low and Up are its
	// 95 % confidence interval, whose width takes into account that neighbouring steps are alike.
	// They are 0 if there are fewer than minSteps steps, or if a stream never changes.
	Correlation float64 `json:"correlation"`
	Low         float64 `json:"correlationLow"`
	Up          float64 `json:"correlationUp"`
	// BoundDuring and BoundAfter are pods SCHEDULED per second before and after the last CREATED;
	// BoundAfter is 0 if nearly all had nodes by then. ScheduledDuring is the share of the pods that
	// were SCHEDULED before the last CREATED.
	CreatedPerSecond float64 `json:"createdPerSecond"`
	BoundDuring      float64 `json:"boundPerSecondDuringCreates"`
	BoundAfter       float64 `json:"boundPerSecondAfterCreates"`
	ScheduledDuring  float64 `json:"scheduledDuringCreates"`
	// CreateStalls are the gaps between consecutive CREATED pods.
	CreateStalls Stalls `json:"createStalls"`
}

// minSteps is the least number of steps for a correlation: with fewer its interval says nothing.
const minSteps = 8

// stepsWanted is the number of steps for short runs, whose steps are narrower than a second, and
// perStep is the least number of pods created in a step, on average.
const (
	stepsWanted = 24
	perStep     = 5
)

// slowedTo is the part of its later rate to which a stream has to fall for Competes to be true.
const slowedTo = 0.8

// Competes reports whether one stream went down when the other one went up, or binding was clearly
// slower while pods were being created than afterwards.
func (c *Contention) Competes() bool {
	return c.Correlation < 0 && c.Up < 0 || c.BoundAfter > 0 && c.BoundDuring < slowedTo*c.BoundAfter
}

// contention compares the sorted moments of both streams. It returns nil if every pod was SCHEDULED
// by its create, because then there is one stream.
func contention(created, scheduled []time.Time, bound int) *Contention {
	if bound == 0 || len(created) < 2 {
		return nil
	}
	begin, end := created[0], created[len(created)-1]
	during := end.Sub(begin).Seconds()
	if during <= 0 {
		return nil
	}
	c := &Contention{CreateStalls: stalls(begin, created), CreatedPerSecond: Round(float64(len(created))/during, 1)}
	before := 0
	for before < len(scheduled) && !scheduled[before].After(end) {
		before++
	}
	c.ScheduledDuring = Round(float64(before)/float64(len(created)), 3)
	if before > 0 {
		// From the first one on: until then nothing was there to bind.
		c.BoundDuring = Round(float64(before)/max(end.Sub(scheduled[0]).Seconds(), 1e-3), 1)
	}
	// A rate of the rest says something only if the rest is more than what was under way.
	if rest := len(scheduled) - before; rest > len(scheduled)/20 {
		c.BoundAfter = Round(float64(rest)/max(scheduled[len(scheduled)-1].Sub(end).Seconds(), 1e-3), 1)
	}
	step := max(min(1, during/stepsWanted), during*perStep/float64(len(created)))
	c.Steps, c.StepSeconds = int(during/step+0.001), Round(step, 3)
	count := func(moments []time.Time) []float64 {
		out := make([]float64, c.Steps)
		for _, at := range moments {
			if i := int(at.Sub(begin).Seconds() / step); i >= 0 && i < c.Steps {
				out[i]++
			}
		}
		return out
	}
	c.Correlation, c.Low, c.Up = correlation(count(created), count(scheduled))
	return c
}

// correlation returns Pearson's coefficient with its 95 % confidence interval by Fisher's
// transformation. Neighbouring values of a series depend on each other, so that n of them say as
// much as fewer independent ones: Bartlett's formula for series of first order gives their number.
func correlation(a, b []float64) (r, low, up float64) {
	n := float64(len(a))
	if len(a) < minSteps {
		return 0, 0, 0
	}
	r, ok := pearson(a, b)
	if !ok {
		return 0, 0, 0
	}
	dependence := 0.0
	ownA, okA := pearson(a[1:], a[:len(a)-1])
	ownB, okB := pearson(b[1:], b[:len(b)-1])
	if okA && okB {
		dependence = max(0, ownA*ownB)
	}
	n *= (1 - dependence) / (1 + dependence)
	if n <= 4 {
		return Round(r, 2), -1, 1
	}
	z, half := math.Atanh(max(-0.9999, min(0.9999, r))), 1.96/math.Sqrt(n-3)
	return Round(r, 2), Round(math.Tanh(z-half), 2), Round(math.Tanh(z+half), 2)
}

// pearson returns the correlation coefficient; ok is false if a series is constant.
func pearson(a, b []float64) (r float64, ok bool) {
	n := float64(len(a))
	var meanA, meanB float64
	for i := range a {
		meanA, meanB = meanA+a[i]/n, meanB+b[i]/n
	}
	var ab, aa, bb float64
	for i := range a {
		x, y := a[i]-meanA, b[i]-meanB
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	if aa < 1e-9 || bb < 1e-9 {
		return 0, false
	}
	return ab / math.Sqrt(aa*bb), true
}
