package simulate

import (
	"cmp"
	"math"
	"slices"
)

// pool is a kind of machine: the size of its L3 domains in CPUs, and their number in a NUMA node.
type pool struct{ l3, perNUMA int }

// item is what pods of one size need to have packed: a rest, smaller than an L3 domain, and L3
// domains that they fill, in the same NUMA node.
type item struct{ fills, rest int }

// demand is the number of L3 domains that pods need at least, each over as few domains as its size
// needs and within one NUMA node if it fits in one, on the machines of a pool.
//
// A pod that needs k domains may be assumed to fill k-1 of them: in any other position, the pods
// that share these domains with it have room together beside its rest, because they take no more
// than what the pod leaves of the k domains. So only the rests need to be packed. Rests may share a
// domain if the domains that their pods fill are in its NUMA node, too.
type demand struct {
	pool
	domains int // domains available
	wholes  int // domains that pods fill entirely
	rests   map[item]int
	free    int // no packing leaves more domains idle
	idle    int // CPUs
}

func newDemand(p pool) *demand { return &demand{pool: p, rests: map[item]int{}} }

// addDomains adds domains to the pool.
func (d *demand) addDomains(n int) {
	d.domains, d.free, d.idle = d.domains+n, d.free+n, d.idle+n*d.l3
}

// add adds (1) or removes (-1) a pod.
func (d *demand) add(size, sign int) {
	d.idle -= sign * size
	fills, rest := size/d.l3, size%d.l3
	d.wholes += sign * fills
	if rest > 0 {
		if fills >= d.perNUMA {
			fills = 0 // larger than a NUMA node: its rest may be anywhere
		}
		i := item{fills, rest}
		if d.rests[i] += sign; d.rests[i] == 0 {
			delete(d.rests, i)
		}
	}
	d.free = max(0, d.domains-d.wholes-binsNeeded(d.pool, d.rests))
}

// binsNeeded returns a lower bound of the number of domains into which rests can be packed: the
// linear relaxation of the problem over the ways to fill a domain (Gilmore and Gomory), rounded up.
// The optimum is seldom above it.
func binsNeeded(p pool, rests map[item]int) int {
	var items []item
	for i := range rests {
		items = append(items, i)
	}
	if len(items) == 0 {
		return 0
	}
	slices.SortFunc(items, func(a, b item) int { return cmp.Or(a.rest-b.rest, a.fills-b.fills) })
	r := newRelaxation(p, items)
	for k, i := range items {
		r.left[k] = float64(rests[i]) * r.inverse[k][k]
	}
	best := 0.0
	for range pivotsMax {
		worth := r.price()
		// The prices divided by the worth of the best filling are a feasible solution of the dual
		// problem, and so a lower bound, in every step.
		bound := 0.0
		for k, i := range items {
			bound += r.prices[k] * float64(rests[i])
		}
		best = max(best, bound/max(worth, 1))
		if worth <= 1+1e-9 || !r.pivot() {
			break
		}
	}
	return int(math.Ceil(best - 1e-6))
}

// pivotsMax bounds the steps of the simplex method. A few steps for each item are usual.
const pivotsMax = 1000

// relaxation is the state of the simplex method with generated columns. Rows are items, columns are
// ways to fill a domain, and each column costs one domain.
type relaxation struct {
	pool
	items   []item
	inverse [][]float64 // of the basis, whose first columns are domains full of one item
	left    []float64   // right-hand side: how often each column of the basis is used
	prices  []float64   // of each item
	fill    []int       // the most valuable filling at these prices, number of each item
	value   []float64   // scratch: by room in the domain and domains left beside it
	last    []int
}

func newRelaxation(p pool, items []item) *relaxation {
	n, states := len(items), (p.l3+1)*p.perNUMA
	r := &relaxation{pool: p, items: items, left: make([]float64, n), prices: make([]float64, n), fill: make([]int, n),
		value: make([]float64, states), last: make([]int, states), inverse: make([][]float64, n)}
	for k, i := range items {
		most := p.l3 / i.rest
		if i.fills > 0 {
			most = min(most, (p.perNUMA-1)/i.fills)
		}
		r.inverse[k] = make([]float64, n)
		r.inverse[k][k] = 1 / float64(most)
	}
	return r
}

// price computes the prices of the present basis, and the most valuable way to fill a domain at
// these prices, and returns its value.
func (r *relaxation) price() float64 {
	for i := range r.items {
		r.prices[i] = 0
		for k := range r.inverse {
			r.prices[i] += r.inverse[k][i]
		}
	}
	// State room*perNUMA+beside: the best filling of that room, with that many domains beside it.
	for state := r.perNUMA; state < len(r.value); state++ {
		room, beside := state/r.perNUMA, state%r.perNUMA
		r.value[state], r.last[state] = r.value[state-r.perNUMA], -1
		for k, i := range r.items {
			if i.rest <= room && i.fills <= beside {
				if v := r.value[state-i.rest*r.perNUMA-i.fills] + r.prices[k]; v > r.value[state] {
					r.value[state], r.last[state] = v, k
				}
			}
		}
	}
	clear(r.fill)
	state := len(r.value) - 1
	for state >= r.perNUMA {
		if k := r.last[state]; k >= 0 {
			r.fill[k]++
			state -= r.items[k].rest*r.perNUMA + r.items[k].fills
		} else {
			state -= r.perNUMA
		}
	}
	return r.value[len(r.value)-1]
}

// pivot brings the filling into the basis, and reports whether that was possible.
func (r *relaxation) pivot() bool {
	n := len(r.items)
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
