package capacity

import (
	"cmp"
	"math"
	"slices"
)

// Resolution is the ratio of the ends of the interval at which a search ends. If rates grow by the usual
// half, four halvings of the interval reach it.
const Resolution = 1.026

// lowest is the part of the first rate below which a search gives up.
const lowest = 1.0 / 64

// Search is a search for a capacity. Its zero value is not useful: set Start and Growth.
type Search struct {
	// Start is the first rate. Each further one is Growth times as high until the system falls
	// behind. No rate is above Max, if it is set.
	Start, Growth, Max float64

	low, high float64
	// again is a rate at which the system fell behind once.
	again float64
}

// Next returns the rate of the next step; ok is false if the search has ended.
func (s *Search) Next() (rate float64, ok bool) {
	switch {
	case s.again > 0:
		return s.again, true
	case s.low == 0 && s.high == 0:
		return s.bounded(s.Start), true
	case s.high == 0:
		rate = s.bounded(s.low * s.Growth)
		return rate, rate > s.low
	case s.low == 0:
		rate = s.high / s.Growth
		return rate, rate >= s.Start*lowest
	}
	return math.Sqrt(s.low * s.high), s.high > s.low*Resolution
}

func (s *Search) bounded(rate float64) float64 {
	if s.Max > 0 {
		return min(rate, s.Max)
	}
	return rate
}

// Note records whether the system kept up in a step at the rate that Next returned.
func (s *Search) Note(rate float64, keptUp bool) {
	switch {
	case keptUp:
		s.low, s.again = rate, 0
	case s.again == rate:
		s.high, s.again = rate, 0
	default:
		s.again = rate
	}
}

// Interval returns the highest rate that the system kept up with, 0 if there is none, and the lowest
// one at which it fell behind, 0 if there is none.
func (s *Search) Interval() (low, high float64) { return s.low, s.high }

// Arrival is one arrival of a step: AtSeconds after the beginning it was due, and it was served
// WaitSeconds later.
type Arrival struct{ AtSeconds, WaitSeconds float64 }

// GrowthMax is the growth of the waits, in seconds per second, up to which a system keeps up. One that
// can serve 100 a second and gets 103 lets the wait grow by 0.03 s per second.
const GrowthMax = 0.02

// Growth returns how much longer arrivals wait from one second to the next: the difference between the
// median waits of the first and the last third, divided by the time between their middles. It is 0 if
// there are fewer than nine arrivals. It sorts arrivals.
func Growth(arrivals []Arrival) float64 {
	third := len(arrivals) / 3
	if third < 3 {
		return 0
	}
	slices.SortFunc(arrivals, func(a, b Arrival) int { return cmp.Compare(a.AtSeconds, b.AtSeconds) })
	first, last := arrivals[:third], arrivals[len(arrivals)-third:]
	apart := median(last, func(a Arrival) float64 { return a.AtSeconds }) - median(first, func(a Arrival) float64 { return a.AtSeconds })
	if apart <= 0 {
		return 0
	}
	wait := func(a Arrival) float64 { return a.WaitSeconds }
	return (median(last, wait) - median(first, wait)) / apart
}

func median(arrivals []Arrival, of func(Arrival) float64) float64 {
	var values []float64
	for _, a := range arrivals {
		values = append(values, of(a))
	}
	slices.Sort(values)
	return values[len(values)/2]
}
