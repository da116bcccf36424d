package capacity

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// serve returns the arrivals of a step of a server that serves so many per second, one after the
// other.
func serve(capacity, rate, seconds float64, noise func() float64) (out []Arrival) {
	free := 0.0
	for i := range int(rate * seconds) {
		at := float64(i) / rate
		free = max(free, at) + 1/capacity
		out = append(out, Arrival{at, free - at + noise()})
	}
	return out
}

// TestACapacityIsFoundWithinFivePercent searches the capacity of servers, on machines that stall now
// and then.
func TestACapacityIsFoundWithinFivePercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(3, 3000).Draw(t, "capacity")
		start := rapid.Float64Range(2, 100).Draw(t, "start")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		noise := func() float64 {
			if random.IntN(20) == 0 {
				return random.Float64() // a stall
			}
			return 0.01 * random.Float64()
		}
		s := Search{Start: start, Growth: 1.5}
		steps := 0
		for {
			rate, ok := s.Next()
			if !ok {
				break
			}
			if steps++; steps > 60 {
				t.Fatal("the search does not end")
			}
			s.Note(rate, Growth(serve(capacity, rate, max(10, 60/rate), noise)) <= GrowthMax)
		}
		low, high := s.Interval()
		if low > 1.05*capacity || high < 0.97*capacity || high > low*Resolution*1.001 || low < capacity/1.05 {
			t.Fatalf("%v to %v, the capacity is %v", low, high, capacity)
		}
	})
}

func TestSearch(t *testing.T) {
	for sentence, c := range map[string]struct {
		search   Search
		capacity float64
		low, up  [2]float64 // between which the ends are
	}{
		"a bound that the system keeps up with":   {Search{Start: 10, Growth: 2, Max: 30}, 100, [2]float64{30, 30}, [2]float64{0, 0}},
		"a first rate that is too high":           {Search{Start: 100, Growth: 2}, 15, [2]float64{14.6, 15}, [2]float64{15, 15.4}},
		"a system that serves nothing":            {Search{Start: 10, Growth: 2}, 0, [2]float64{0, 0}, [2]float64{0.1, 0.2}},
		"a first rate that is exactly the bound":  {Search{Start: 10, Growth: 2, Max: 10}, 100, [2]float64{10, 10}, [2]float64{0, 0}},
		"a capacity between two rates of growing": {Search{Start: 10, Growth: 2}, 50, [2]float64{48.7, 50}, [2]float64{50, 51.3}},
	} {
		s := c.search
		for steps := 0; ; steps++ {
			rate, ok := s.Next()
			if !ok {
				break
			}
			if steps > 60 {
				t.Fatalf("%s: does not end", sentence)
			}
			s.Note(rate, rate <= c.capacity)
		}
		low, high := s.Interval()
		if low < c.low[0] || low > c.low[1] || high < c.up[0] || high > c.up[1] {
			t.Errorf("%s: %v to %v", sentence, low, high)
		}
	}
}

// TestOneStallDoesNotEndASearch lets the system fall behind once at each rate.
func TestOneStallDoesNotEndASearch(t *testing.T) {
	s := Search{Start: 10, Growth: 2, Max: 40}
	tried := map[float64]int{}
	for {
		rate, ok := s.Next()
		if !ok {
			break
		}
		tried[rate]++
		s.Note(rate, tried[rate] > 1)
	}
	if low, high := s.Interval(); low != 40 || high != 0 || tried[10] != 2 || tried[40] != 2 {
		t.Errorf("%v to %v, tried %v", low, high, tried)
	}
}

func TestGrowth(t *testing.T) {
	if g := Growth(serve(100, 110, 10, func() float64 { return 0 })); g < 0.095 || g > 0.105 {
		t.Errorf("a tenth too much: %v", g)
	}
	if g := Growth(serve(100, 90, 10, func() float64 { return 0 })); math.Abs(g) > 1e-9 {
		t.Errorf("a tenth less: %v", g)
	}
	if g := Growth(make([]Arrival, 8)); g != 0 {
		t.Errorf("too few: %v", g)
	}
	if g := Growth(make([]Arrival, 30)); g != 0 {
		t.Errorf("all at once: %v", g)
	}
}
