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

// Calibrate writes a sample of so many units once at each concurrency, and returns the one at which it went fastest.
func Calibrate(concurrencies []int, units int, write func(i, concurrency int) (time.Duration, error)) (best int, samples []Sample, err error) {
	fastest := 0.0
	for i, n := range concurrencies {
		took, err := write(i, n)
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
