package floor

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Sample is the rate measured at one concurrency, in units of the load per second.
type Sample struct {
	Concurrency int     `json:"concurrency"`
	PerSecond   float64 `json:"perSecond"`
}

// Finalists is the number of concurrencies that are sampled twice. A sample of about a second can
// show half or twice the rate of the next one, and a floor at the wrong concurrency flatters the
// system that is compared with it.
const Finalists = 2

// Calibrate writes a sample at each concurrency and a second one at the fastest two. It returns the
// concurrency with the highest rate over both samples. write writes sample i and returns how many
// units it had and how long it took.
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
		for _, k := range order[:Finalists] {
			if err := sample(k); err != nil {
				return 0, results(), err
			}
		}
		slices.SortStableFunc(order[:Finalists], byPace)
	}
	if len(order) == 0 || concurrencies[order[0]] < 1 {
		return 0, results(), errors.New("no concurrency to try")
	}
	return concurrencies[order[0]], results(), nil
}

// Rank writes a sample in each order, and returns the orders with the fastest first.
func Rank(orders []Order, write func(Order) (units int, took time.Duration, err error)) ([]Order, error) {
	pace := map[Order]float64{}
	for _, order := range orders {
		units, took, err := write(order)
		if err != nil {
			return nil, err
		}
		pace[order] = float64(units) / took.Seconds()
	}
	ranked := slices.Clone(orders)
	slices.SortStableFunc(ranked, func(a, b Order) int { return cmp.Compare(pace[b], pace[a]) })
	return ranked, nil
}

// Best returns the index of the shortest time, and -1 if the measured time is shorter than all: then
// they bound nothing. A difference below half a percent is none, because ratios are given in percent.
func Best(tries []float64, measured float64) int {
	if len(tries) == 0 {
		return -1
	}
	best := slices.Index(tries, slices.Min(tries))
	if measured < 0.995*tries[best] {
		return -1
	}
	return best
}
