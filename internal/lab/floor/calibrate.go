package floor

import (
	"errors"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Sample is the pace of a sample, in units of the load per second.
type Sample struct {
	Concurrency int     `json:"concurrency"`
	PerSecond   float64 `json:"perSecond"`
}

// Calibrate has a sample written once at each concurrency, and returns the one at which it went fastest. write says how many
// units the sample had, and how long it took.
func Calibrate(concurrencies []int, write func(i, concurrency int) (units int, took time.Duration, err error)) (best int, samples []Sample, err error) {
	fastest := 0.0
	for i, n := range concurrencies {
		units, took, err := write(i, n)
		if err != nil {
			return 0, samples, err
		}
		s := Sample{n, analyse.Round(float64(units)/took.Seconds(), 2)}
		samples = append(samples, s)
		if s.PerSecond > fastest {
			best, fastest = n, s.PerSecond
		}
	}
	if best < 1 {
		return 0, samples, errors.New("no concurrency to try")
	}
	return best, samples, nil
}
