package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// series returns 300 values, one a second.
func series(f func(t float64) float64) (times, values []float64) {
	for i := range 300 {
		times, values = append(times, float64(i)), append(values, f(float64(i)))
	}
	return times, values
}

func TestGrowth(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	noise := func() float64 { return random.NormFloat64() }
	for sentence, c := range map[string]struct {
		f    func(t float64) float64
		want bool
	}{
		"level with noise":                  {func(float64) float64 { return 100 + 3*noise() }, false},
		"a leak":                            {func(t float64) float64 { return 100 + 0.2*t + 3*noise() }, true},
		"a sawtooth":                        {func(t float64) float64 { return 100 + math.Mod(t, 23) }, false},
		"a sawtooth with a leak":            {func(t float64) float64 { return 100 + math.Mod(t, 23) + 0.2*t }, true},
		"caches that fill in the beginning": {func(t float64) float64 { return 100 + min(t, 60) + noise() }, false},
		"a jump at the end":                 {func(t float64) float64 { return map[bool]float64{true: 300, false: 100}[t > 290] + noise() }, false},
		"a fall":                            {func(t float64) float64 { return 200 - 0.2*t + noise() }, false},
		"a certain trend that is small":     {func(t float64) float64 { return 100 + 0.005*t }, false},
	} {
		g, ok := Trend(series(c.f))
		if got := g.Grows(0.05, 4); !ok || got != c.want {
			t.Errorf("%s: grows %v: %+v", sentence, got, g)
		}
	}
}

func TestTooFewValuesHaveNoTrend(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		times, values := series(func(t float64) float64 { return t })
		if g, ok := Trend(times[:n], values[:n]); ok {
			t.Errorf("%d values: %+v", n, g)
		}
	}
}

// TestTheTrendOfALine checks that lines have their own slope.
func TestTheTrendOfALine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slope, offset := rapid.Float64Range(0, 10).Draw(t, "slope"), rapid.Float64Range(-100, 100).Draw(t, "offset")
		g, ok := Trend(series(func(t float64) float64 { return offset + slope*t }))
		if !ok || math.Abs(g.Slope-slope) > 1e-6 || math.Abs(g.To-(offset+slope*299)) > 1e-3 || g.Low > g.Slope+1e-9 || g.Up < g.Slope-1e-9 {
			t.Fatalf("%+v", g)
		}
	})
}
