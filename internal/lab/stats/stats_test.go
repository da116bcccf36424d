package stats

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-3*(1+math.Abs(b)) }

func TestOf(t *testing.T) {
	for sentence, c := range map[string]struct {
		values []float64
		want   Summary
	}{
		"nothing":               {nil, Summary{}},
		"one value":             {[]float64{3}, Summary{N: 1, Mean: 3, Min: 3, Max: 3}},
		"three values":          {[]float64{10, 12, 14}, Summary{N: 3, Mean: 12, Min: 10, Max: 14, Half: 4.303 * 2 / math.Sqrt(3)}},
		"values without spread": {[]float64{5, 5, 5, 5}, Summary{N: 4, Mean: 5, Min: 5, Max: 5}},
	} {
		got := Of(c.values)
		if got.N != c.want.N || !near(got.Mean, c.want.Mean) || got.Min != c.want.Min || got.Max != c.want.Max || !near(got.Half, c.want.Half) {
			t.Errorf("%s: %+v, want %+v", sentence, got, c.want)
		}
	}
}

func TestPaired(t *testing.T) {
	// A machine that slows down by half for each later pair does not hide a ratio of 2.
	r := Paired([]float64{2, 4, 8}, []float64{1, 2, 4})
	if r.N != 3 || !near(r.Mean, 2) || !near(r.Low, 2) || !near(r.Up, 2) || !r.Differs() {
		t.Errorf("%+v", r)
	}
	if r := Paired([]float64{10, 12, 11}, []float64{11, 11, 11}); r.Differs() {
		t.Errorf("noise differs: %+v", r)
	}
	if r := Paired([]float64{10}, []float64{5}); r.Mean != 2 || !r.Differs() || !math.IsInf(r.Up, 1) {
		t.Errorf("%+v", r)
	}
	if r := Paired([]float64{0, 3}, []float64{5}); r.N != 0 {
		t.Errorf("%+v", r)
	}
}

func TestARatioIsTheInverseOfTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		positive := rapid.SliceOfN(rapid.Float64Range(0.01, 1000), 2, 40)
		a, b := positive.Draw(t, "a"), positive.Draw(t, "b")
		r, inverse := Paired(a, b), Paired(b, a)
		if !near(r.Mean*inverse.Mean, 1) || !near(r.Low*inverse.Up, 1) || r.Low > r.Mean || r.Mean > r.Up || r.Differs() != inverse.Differs() {
			t.Fatalf("%+v, %+v", r, inverse)
		}
	})
}

// TestTheIntervalHolds checks with normal values that about 95 % of the intervals have the mean.
func TestTheIntervalHolds(t *testing.T) {
	state := uint64(1)
	uniform := func() float64 {
		state = state*6364136223846793005 + 1442695040888963407
		return float64(state>>11) / (1 << 53)
	}
	held := 0
	for range 4000 {
		values := make([]float64, 6)
		for i := range values {
			values[i] = 10 + math.Sqrt(-2*math.Log(1-uniform()))*math.Cos(2*math.Pi*uniform())
		}
		if s := Of(values); math.Abs(s.Mean-10) <= s.Half {
			held++
		}
	}
	if share := float64(held) / 4000; share < 0.935 || share > 0.965 {
		t.Errorf("%.3f of the intervals have the mean", share)
	}
}
