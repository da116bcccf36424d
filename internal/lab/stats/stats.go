package stats

import (
	"fmt"
	"math"
	"slices"
)

// Summary summarises equal measurements.
type Summary struct {
	N              int
	Mean, Min, Max float64
	// Half is half the width of the 95 % confidence interval of the mean; 0 if N is 1.
	Half float64
}

// Of returns the summary of values.
func Of(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	mean, half := interval(values)
	return Summary{N: len(values), Mean: mean, Min: slices.Min(values), Max: slices.Max(values), Half: half}
}

// Ratio is the mean ratio of measurements in pairs, with its 95 % confidence interval. The interval
// is the whole positive axis if there is only one pair.
type Ratio struct {
	N             int
	Mean, Low, Up float64
}

// Paired returns the ratio of a to b. The i-th values of both were measured one after the other, so
// that what slows the machine for a while slows both. The mean is the geometric one, so that the
// ratio of b to a is the inverse. Values that are not positive have no ratio and are left out.
func Paired(a, b []float64) Ratio {
	var logs []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			logs = append(logs, math.Log(a[i]/b[i]))
		}
	}
	switch len(logs) {
	case 0:
		return Ratio{}
	case 1:
		return Ratio{N: 1, Mean: math.Exp(logs[0]), Low: 0, Up: math.Inf(1)}
	}
	mean, half := interval(logs)
	return Ratio{N: len(logs), Mean: math.Exp(mean), Low: math.Exp(mean - half), Up: math.Exp(mean + half)}
}

// Differs reports whether the ratio is known to be another than 1. A single pair differs, because
// nothing is known about its error.
func (r Ratio) Differs() bool { return r.N == 1 || r.Low > 1 || r.Up < 1 }

// interval returns the mean and half the width of its 95 % confidence interval by Student's t.
func interval(values []float64) (mean, half float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	if len(values) < 2 {
		return mean, 0
	}
	sum := 0.0
	for _, v := range values {
		sum += (v - mean) * (v - mean)
	}
	return mean, quantile(len(values)-1) * math.Sqrt(sum/(n-1)/n)
}

// quantiles are the 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
var quantiles = [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
	2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042}

func quantile(degrees int) float64 {
	if degrees <= len(quantiles) {
		return quantiles[degrees-1]
	}
	return 1.96 + 2.4/float64(degrees) // off by less than 0.005
}

// Format formats the mean with the half width of its interval, if there is one.
func (s Summary) Format(format func(float64) string) string {
	if s.N < 2 {
		return format(s.Mean)
	}
	return fmt.Sprintf("%s ± %s", format(s.Mean), format(s.Half))
}
