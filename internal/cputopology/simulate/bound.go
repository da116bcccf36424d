package simulate

import "math"

// demand is the number of L3 domains that pods need at least, each over as few domains as its size
// needs, in a pool of domains of one size.
//
// A pod that needs k domains may be assumed to fill k-1 of them: in any other position, the pods
// that share these domains with it have room together beside its rest, because they take no more
// than what the pod leaves of the k domains. So only the rests, each smaller than a domain, need to
// be packed, and a lower bound of the domains for the rests gives a bound for all pods.
type demand struct {
	domains int   // domains available
	wholes  int   // domains that pods fill entirely
	rests   []int // number of pods, by the CPUs that they need beyond whole domains
	free    int   // no packing leaves more domains idle
	idle    int   // CPUs
}

func newDemand(l3Size int) *demand { return &demand{rests: make([]int, l3Size)} }

// addDomains adds domains to the pool.
func (d *demand) addDomains(n int) {
	d.domains, d.free, d.idle = d.domains+n, d.free+n, d.idle+n*len(d.rests)
}

// add adds (1) or removes (-1) a pod.
func (d *demand) add(size, sign int) {
	d.idle -= sign * size
	d.wholes += sign * (size / len(d.rests))
	d.rests[size%len(d.rests)] += sign
	d.free = max(0, d.domains-d.wholes-binsNeeded(d.rests))
}

// binsNeeded returns a lower bound of the number of bins of size len(counts) into which items can
// be packed, counts[s] of each size s: the linear relaxation of the problem over the ways to fill a
// bin (Gilmore and Gomory), rounded up. The optimum is seldom above it, and never known to be by
// more than one.
func binsNeeded(counts []int) int {
	var sizes []int
	for s, n := range counts {
		if s > 0 && n > 0 {
			sizes = append(sizes, s)
		}
	}
	if len(sizes) == 0 {
		return 0
	}
	r := newRelaxation(len(counts), sizes)
	for i, s := range sizes {
		r.left[i] = float64(counts[s]) / float64(len(counts)/s)
	}
	best := 0.0
	for range pivotsMax {
		worth := r.price()
		// The prices divided by the worth of the best filling are a feasible solution of the dual
		// problem, and so a lower bound, in every step.
		bound := 0.0
		for i, s := range sizes {
			bound += r.prices[i] * float64(counts[s])
		}
		best = max(best, bound/max(worth, 1))
		if worth <= 1+1e-9 || !r.pivot() {
			break
		}
	}
	return int(math.Ceil(best - 1e-6))
}

// pivotsMax bounds the steps of the simplex method. A few steps for each size are usual.
const pivotsMax = 500

// relaxation is the state of the simplex method with generated columns. Rows are sizes, columns are
// ways to fill a bin, and each column costs one bin.
type relaxation struct {
	bin     int
	sizes   []int
	inverse [][]float64 // of the basis, whose first columns are bins full of one size
	left    []float64   // right-hand side: how often each column of the basis is used
	prices  []float64   // of one item of each size
	fill    []int       // the most valuable filling at these prices, items of each size
	value   []float64   // scratch: by room in the bin
	last    []int
}

func newRelaxation(bin int, sizes []int) *relaxation {
	n := len(sizes)
	r := &relaxation{bin: bin, sizes: sizes, left: make([]float64, n), prices: make([]float64, n), fill: make([]int, n),
		value: make([]float64, bin+1), last: make([]int, bin+1), inverse: make([][]float64, n)}
	for i, s := range sizes {
		r.inverse[i] = make([]float64, n)
		r.inverse[i][i] = 1 / float64(bin/s)
	}
	return r
}

// price computes the prices of the present basis, and the most valuable way to fill a bin at these
// prices, and returns its value.
func (r *relaxation) price() float64 {
	for i := range r.sizes {
		r.prices[i] = 0
		for k := range r.inverse {
			r.prices[i] += r.inverse[k][i]
		}
	}
	for room := 1; room <= r.bin; room++ {
		r.value[room], r.last[room] = r.value[room-1], -1
		for i, s := range r.sizes {
			if s <= room && r.value[room-s]+r.prices[i] > r.value[room] {
				r.value[room], r.last[room] = r.value[room-s]+r.prices[i], i
			}
		}
	}
	clear(r.fill)
	for room := r.bin; room > 0; {
		if i := r.last[room]; i >= 0 {
			r.fill[i]++
			room -= r.sizes[i]
		} else {
			room--
		}
	}
	return r.value[r.bin]
}

// pivot brings the filling into the basis, and reports whether that was possible.
func (r *relaxation) pivot() bool {
	n := len(r.sizes)
	column := make([]float64, n)
	out := -1
	for k := range n {
		for i, count := range r.fill {
			column[k] += r.inverse[k][i] * float64(count)
		}
		if column[k] > 1e-9 && (out < 0 || r.left[k]/column[k] < r.left[out]/column[out]) {
			out = k
		}
	}
	if out < 0 {
		return false
	}
	for i := range n {
		r.inverse[out][i] /= column[out]
	}
	r.left[out] /= column[out]
	for k := range n {
		if k == out || column[k] == 0 {
			continue
		}
		for i := range n {
			r.inverse[k][i] -= column[k] * r.inverse[out][i]
		}
		r.left[k] -= column[k] * r.left[out]
	}
	return true
}
