package floor

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Sample is the pace of what was written at one concurrency, in units of the load per second.
type Sample struct {
	Concurrency int     `json:"concurrency"`
	PerSecond   float64 `json:"perSecond"`
}

// finalists are how many concurrencies are sampled twice. One sample of a second or so can be half or double of what the next
// one gives, and a floor at the wrong concurrency flatters whoever is compared with it.
const finalists = 2

// Calibrate has a sample written at each concurrency and a second one at the fastest two, and returns the one at which it went
// fastest, both samples together. write says how many units the sample had, and how long it took; i numbers the samples.
func Calibrate(concurrencies []int, write func(i, concurrency int) (units int, took time.Duration, err error)) (best int, samples []Sample, err error) {
	type total struct {
		units int
		took  time.Duration
	}
	pace := func(t total) float64 { return float64(t.units) / t.took.Seconds() }
	totals := make([]total, 0, len(concurrencies))
	results := func() (out []Sample) {
		for k, t := range totals {
			out = append(out, Sample{concurrencies[k], analyse.Round(pace(t), 2)})
		}
		return out
	}
	written := 0
	sample := func(k int) error {
		units, took, err := write(written, concurrencies[k])
		written++
		if err != nil {
			return err
		}
		if k == len(totals) {
			totals = append(totals, total{})
		}
		totals[k].units += units
		totals[k].took += took
		return nil
	}
	order := make([]int, len(concurrencies))
	for k := range concurrencies {
		order[k] = k
		if err := sample(k); err != nil {
			return 0, results(), err
		}
	}
	byPace := func(a, b int) int { return cmp.Compare(pace(totals[b]), pace(totals[a])) }
	slices.SortStableFunc(order, byPace)
	if len(order) > 1 {
		for _, k := range order[:finalists] {
			if err := sample(k); err != nil {
				return 0, results(), err
			}
		}
		slices.SortStableFunc(order[:finalists], byPace)
	}
	if len(order) == 0 || concurrencies[order[0]] < 1 {
		return 0, results(), errors.New("no concurrency to try")
	}
	return concurrencies[order[0]], results(), nil
}
