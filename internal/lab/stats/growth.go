package stats

import (
	"math"
	"slices"
)

// Growth is the trend of a quantity over time.
type Growth struct {
	// Slope is the median of the slopes between all pairs of values (Theil and Sen), and Low and Up
	// its 95 % confidence interval, per unit of time.
	Slope, Low, Up float64
	// From and To are the trend's values at the first and the last time.
	From, To float64
}

const (
	// settleShare is the first part of a series, which is left out: caches fill and pools grow.
	settleShare = 1.0 / 3
	// windows is into how many windows the rest is divided. Of each the least value counts, so that
	// a garbage collector's sawtooth does not hide or make a trend.
	windows = 20
	// windowsMin is the least number of windows with values for a judgement.
	windowsMin = 6
)

// Trend returns the trend of values at times, which rise. ok is false if there are too few values.
func Trend(times, values []float64) (g Growth, ok bool) {
	if len(times) != len(values) || len(times) == 0 {
		return g, false
	}
	first, last := times[0], times[len(times)-1]
	first += settleShare * (last - first)
	if last <= first {
		return g, false
	}
	var x, y []float64
	at := -1
	for i, t := range times {
		if t < first {
			continue
		}
		w := min(windows-1, int(windows*(t-first)/(last-first)))
		switch {
		case w != at:
			at = w
			x, y = append(x, t), append(y, values[i])
		case values[i] < y[len(y)-1]:
			x[len(x)-1], y[len(y)-1] = t, values[i]
		}
	}
	if len(x) < windowsMin {
		return g, false
	}
	var slopes []float64
	for i := range x {
		for k := i + 1; k < len(x); k++ {
			if x[k] > x[i] {
				slopes = append(slopes, (y[k]-y[i])/(x[k]-x[i]))
			}
		}
	}
	slices.Sort(slopes)
	n := float64(len(x))
	// The interval is that of Sen: ranks around the median by the variance of Kendall's statistic.
	half := 1.96 * math.Sqrt(n*(n-1)*(2*n+5)/18)
	rank := func(r float64) float64 { return slopes[max(0, min(len(slopes)-1, int(math.Round(r))))] }
	m := float64(len(slopes))
	g = Growth{Slope: median(slopes), Low: rank((m-half)/2 - 1), Up: rank((m + half) / 2)}
	var offsets []float64
	for i := range x {
		offsets = append(offsets, y[i]-g.Slope*x[i])
	}
	slices.Sort(offsets)
	offset := median(offsets)
	g.From, g.To = offset+g.Slope*first, offset+g.Slope*last
	return g, true
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Grows reports whether the trend rises for certain, and by more than share of its beginning and
// more than least.
func (g Growth) Grows(share, least float64) bool {
	return g.Low > 0 && g.To-g.From > max(least, share*math.Abs(g.From))
}
