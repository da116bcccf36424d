package apiwriter

import (
	"math"
	"time"
)

// window is one measurement of the rate at one limit.
type window struct {
	start time.Time
	ended int
	// batchStart and the fields below give the error of the rate: the durations of batches of
	// requests.
	batchStart    time.Time
	batches       int
	sums, squares float64 // of the batch durations, in seconds
}

// windowBatch is the number of requests per batch.
const windowBatch = 8

// add counts a request that ended at now.
func (w *window) add(now time.Time) {
	if w.ended == 0 {
		w.batchStart = w.start
	}
	if w.ended++; w.ended%windowBatch == 0 {
		d := now.Sub(w.batchStart).Seconds()
		w.batches, w.sums, w.squares, w.batchStart = w.batches+1, w.sums+d, w.squares+d*d, now
	}
}

// err returns the standard error of the window's rate, relative to the rate, from the variation
// among batches. It returns 1 if the window has too few batches to tell.
func (w *window) err() float64 {
	n := float64(w.batches)
	if n < 2 || w.sums == 0 {
		return 1
	}
	mean := w.sums / n
	variance := math.Max(w.squares/n-mean*mean, 0) * n / (n - 1)
	return math.Min(math.Sqrt(variance/n)/mean, 1)
}

// rateSamples holds the measurements of one limit, from one or more windows.
type rateSamples struct{ windows, sum, squares float64 }

// add records the logarithm of a window's rate, and the relative standard error of the rate.
func (g *rateSamples) add(rate, relative float64) {
	g.windows, g.sum, g.squares = g.windows+1, g.sum+rate, g.squares+relative*relative
}

func (g *rateSamples) rate() float64     { return g.sum / g.windows } // mean logarithm of the rate
func (g *rateSamples) variance() float64 { return g.squares / g.windows }

// variance is the variance of log(rate) from window to window under an unchanged limit. It is
// larger than the variance inside a window.
type variance struct{ sum, n float64 }

func (v *variance) add(squared float64) {
	if v.n < noiseMemory {
		v.n++
	} else {
		v.sum *= 1 - 1.0/noiseMemory
	}
	v.sum += squared
}

func (v *variance) mean() float64 {
	if v.n == 0 {
		return 0
	}
	return v.sum / v.n
}
