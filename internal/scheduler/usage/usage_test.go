package usage

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func defaults() *Config {
	return &Config{
		Interval: IntervalDefault, Weight: WeightDefault, CPUWeight: 1, MemoryWeight: 1, CPUMax: ThresholdDefault, MemoryMax: ThresholdDefault,
	}
}

func TestJudge(t *testing.T) {
	for sentence, tc := range map[string]struct {
		change   func(*Config)
		use      Use
		overused bool
		score    int64
	}{
		"an idle node":                             {score: 500},
		"a node that is used fully":                {use: Use{CPU: 100, Memory: 100}, overused: true},
		"more than fully":                          {use: Use{CPU: 130, Memory: 100}, overused: true},
		"just below the threshold":                 {use: Use{CPU: 79.9, Memory: 79.9}, score: 100},
		"at the threshold of CPU":                  {use: Use{CPU: 80}, overused: true, score: 300},
		"at the threshold of memory":               {use: Use{Memory: 80}, overused: true, score: 300},
		"a threshold of its own":                   {change: func(c *Config) { c.CPUMax = 90 }, use: Use{CPU: 85}, score: 287},
		"scores only":                              {change: func(c *Config) { c.ScoresOnly = true }, use: Use{CPU: 100, Memory: 100}},
		"only the CPU counts":                      {change: func(c *Config) { c.MemoryWeight = 0 }, use: Use{CPU: 40, Memory: 70}, score: 300},
		"nothing counts":                           {change: func(c *Config) { c.CPUWeight, c.MemoryWeight = 0, 0 }, use: Use{CPU: 40}},
		"a weight of 0":                            {change: func(c *Config) { c.Weight = 0 }, use: Use{CPU: 40}},
		"nodes that differ little have one score":  {use: Use{CPU: 41, Memory: 41}, score: 300},
		"nodes that differ little, on both sides ": {use: Use{CPU: 38, Memory: 39}, score: 300},
	} {
		t.Run(sentence, func(t *testing.T) {
			c := defaults()
			if tc.change != nil {
				tc.change(c)
			}
			if overused, score := c.Judge(tc.use); overused != tc.overused || score != tc.score {
				t.Errorf("%v and %d; want %v and %d", overused, score, tc.overused, tc.score)
			}
		})
	}
}

// TestLessUsedNodesAreNotWorse checks that a node that is used less than another one has no lower
// score, and is not the only one of the two that takes no pods.
func TestLessUsedNodesAreNotWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := defaults()
		c.Weight, c.CPUWeight, c.MemoryWeight = rapid.Int64Range(0, 1000).Draw(t, "weight"), rapid.Int64Range(0, 1000).Draw(t, "cpu weight"), rapid.Int64Range(0, 1000).Draw(t, "memory weight")
		c.CPUMax = rapid.Float64Range(0, 100).Draw(t, "cpu max")
		percent := rapid.Float64Range(0, 150)
		a := Use{CPU: percent.Draw(t, "cpu"), Memory: percent.Draw(t, "memory")}
		b := Use{CPU: a.CPU * rapid.Float64Range(0, 1).Draw(t, "part"), Memory: a.Memory * rapid.Float64Range(0, 1).Draw(t, "part of memory")}
		overA, scoreA := c.Judge(a)
		overB, scoreB := c.Judge(b)
		if scoreB < scoreA || overB && !overA {
			t.Fatalf("%+v: %v %d; %+v: %v %d", a, overA, scoreA, b, overB, scoreB)
		}
		if scoreA < 0 || scoreB > 100*c.Weight {
			t.Fatalf("scores %d and %d", scoreA, scoreB)
		}
	})
}

func TestFresh(t *testing.T) {
	now := time.Unix(1e6, 0)
	for sentence, tc := range map[string]struct {
		interval, age time.Duration
		want          bool
	}{
		"a new one":                         {30 * time.Second, 0, true},
		"one after a reading that failed":   {30 * time.Second, time.Minute, true},
		"one that is too old":               {30 * time.Second, 3*time.Minute + 1, false},
		"one of long intervals":             {5 * time.Minute, 15 * time.Minute, true},
		"one that is too old for any of it": {5 * time.Minute, 15*time.Minute + 1, false},
	} {
		c := Config{Interval: tc.interval}
		if got := c.Fresh(Use{At: now.Add(-tc.age)}, now); got != tc.want {
			t.Errorf("%s: %v", sentence, got)
		}
	}
}
