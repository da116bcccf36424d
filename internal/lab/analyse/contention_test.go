package analyse

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// stream returns moments: counts[i] of them in the i-th second.
func stream(counts ...int) (out []time.Time) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for second, n := range counts {
		for i := range n {
			out = append(out, start.Add(time.Duration((float64(second)+float64(i)/float64(n))*float64(time.Second))))
		}
	}
	return out
}

func TestContention(t *testing.T) {
	for sentence, c := range map[string]struct {
		created, scheduled []int
		competes           bool
		check              func(*Contention) bool
	}{
		"one takes what the other leaves": {
			[]int{90, 10, 80, 20, 95, 5, 70, 30, 85, 15, 90, 10}, []int{10, 90, 20, 80, 5, 95, 30, 70, 15, 85, 10, 90}, true,
			func(c *Contention) bool {
				return c.Correlation < -0.95 && c.Up < -0.8 && c.Steps == 24 && c.StepSeconds < 0.5
			}},
		"both rise and fall with the machine": {
			[]int{90, 10, 80, 20, 95, 5, 70, 30, 85, 15, 90, 10}, []int{90, 10, 80, 20, 95, 5, 70, 30, 85, 15, 90, 10}, false,
			func(c *Contention) bool { return c.Correlation > 0.95 && c.BoundAfter == 0 }},
		"binding waits for the creates to end": {
			[]int{50, 50, 50, 50, 50, 50, 50, 50, 50, 50}, []int{10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 100, 100, 100, 100}, true,
			func(c *Contention) bool {
				return math.Abs(c.BoundDuring-10) < 1 && math.Abs(c.BoundAfter-100) < 5 && c.ScheduledDuring == 0.2
			}},
		"binding is as fast afterwards": {
			[]int{50, 50, 50, 50, 50, 50, 50, 50, 50, 50}, []int{25, 25, 25, 25, 25, 25, 25, 25, 25, 25, 25, 25, 25, 25}, false,
			func(c *Contention) bool { return math.Abs(c.BoundDuring-c.BoundAfter) < 2 && c.CreatedPerSecond > 49 }},
		"creates stall": {
			[]int{50, 0, 0, 50, 0, 50}, []int{1, 1, 1}, false,
			func(c *Contention) bool { return c.CreateStalls.Count == 2 && c.CreateStalls.LongestSeconds > 2 }},
	} {
		scheduled := stream(c.scheduled...)
		got := contention(stream(c.created...), scheduled, len(scheduled))
		if got == nil || got.Competes() != c.competes || !c.check(got) {
			t.Errorf("%s: %+v", sentence, got)
		}
	}
	if got := contention(stream(9, 9), stream(9, 9), 0); got != nil {
		t.Errorf("pods that are created with their nodes: %+v", got)
	}
}

// TestCorrelation checks that the interval has the coefficient, and that two trends, of which each is
// like itself a step later, say nothing about each other.
func TestCorrelation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		series := rapid.SliceOfN(rapid.Float64Range(0, 1000), 40, 40)
		a, b := series.Draw(t, "a"), series.Draw(t, "b")
		r, low, up := correlation(a, b)
		if r < -1 || r > 1 || low > r || r > up {
			t.Fatalf("%v is not between %v and %v", r, low, up)
		}
	})
	var quick, trend []float64
	for i := range 40 {
		quick, trend = append(quick, float64(i*i%7)), append(trend, float64(i+i*i%3))
	}
	if r, low, up := correlation(quick, quick); r != 1 || low < 0.99 {
		t.Errorf("a series and itself: %v, %v to %v", r, low, up)
	}
	if r, low, up := correlation(trend, trend); r != 1 || low != -1 || up != 1 {
		t.Errorf("two trends say something about each other: %v, %v to %v", r, low, up)
	}
	if r, low, up := correlation(make([]float64, 20), quick[:20]); r != 0 || low != 0 || up != 0 {
		t.Errorf("a constant has no correlation: %v, %v to %v", r, low, up)
	}
}
