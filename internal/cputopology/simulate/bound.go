package simulate

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// pool is a kind of machine: the size of its L3 domains in CPUs, and their number in a NUMA node.
type pool struct{ l3, perNUMA int }

// kind is what pods of one size may use at most: domains is 0 for as few L3 domains as the size needs,
// in one NUMA node, and else a number of domains in a number of NUMA nodes, for a pod that is split or
// larger than a NUMA node.
type kind struct{ cpus, domains, numas int }

// kindOf returns the kind of a pod that uses this many L3 domains and NUMA nodes.
func (p pool) kindOf(cpus, domains, numas int) kind {
	least := (cpus + p.l3 - 1) / p.l3
	if domains <= least && numas <= 1 && least <= p.perNUMA {
		return kind{cpus: cpus}
	}
	return kind{cpus, max(domains, least), max(numas, (least+p.perNUMA-1)/p.perNUMA)}
}

// demand is a number of machines of a pool, and what runs on them.
type demand struct {
	pool
	numas int // NUMA nodes
	pods  map[kind]int
	// free is a bound: no packing of the pods in which each uses at most what its kind may use leaves
	// more L3 domains idle. It is computed when it is asked for. With exact, a search for the packing
	// makes it the most domains that can be idle, unless the search is given up.
	free         int
	known, exact bool
}

func newDemand(p pool) *demand { return &demand{pool: p, pods: map[kind]int{}} }

// addNUMA adds NUMA nodes.
func (d *demand) addNUMA(n int) { d.numas, d.known = d.numas+n, false }

// add adds pods or, if their number is negative, removes them.
func (d *demand) add(k kind, pods int) {
	if d.pods[k] += pods; d.pods[k] == 0 {
		delete(d.pods, k)
	}
	d.known = false
}

// mostFree returns the bound of the number of idle domains.
func (d *demand) mostFree() int {
	if !d.known {
		all := d.numas * d.perNUMA
		d.free, d.known = max(0, all-domainsNeeded(d.pool, d.numas, d.pods)), true
		for d.exact && d.free > 0 {
			if ok, known := packs(d.pool, d.numas, d.pods, all-d.free); ok || !known {
				break
			}
			d.free--
		}
	}
	return d.free
}

// piece is what a pod needs to have packed into a NUMA node: a rest, smaller than an L3 domain, and
// domains that it fills.
//
// A pod that uses k domains of a NUMA node, the fewest possible, may be assumed to fill k-1 of them: in
// any other position, the pods that share these domains with it have room together beside its rest,
// because they take no more than what the pod leaves of the k domains.
type piece struct{ fills, rest int }

// domainsNeeded returns a lower bound of the number of L3 domains that pods need on so many NUMA
// nodes. It is the linear relaxation of the packing problem over the ways to fill a NUMA node (Gilmore
// and Gomory), rounded up. The optimum is seldom above it. A pod that is split is packed in pieces, in
// the way that takes the least room, in any NUMA nodes.
//
// The bound does not depend on how far the simplex method has come: for any prices of pieces that are
// not negative, what all pods are worth, less what the most valuable filling of a NUMA node is worth
// beyond its domains for each NUMA node, is a lower bound (Lagrange).
func domainsNeeded(p pool, numas int, pods map[kind]int) int {
	r := newRelaxation(p, numas, pods)
	best := 0.0
	for range pivotsMax {
		var bound float64
		column, c := r.price(&bound)
		best = max(best, bound)
		if column == nil || !r.pivot(column, c) {
			break
		}
	}
	return int(math.Ceil(best - 1e-6))
}

// pivotsMax bounds the steps of the simplex method. A few steps for each row are usual.
const pivotsMax = 1000

// lacking is the cost of a NUMA node that is not there. A feasible packing has none.
const lacking = 1000

// relaxation is the state of the simplex method with generated columns. Its rows are the pieces, the
// split kinds, and the number of NUMA nodes, in this order. Its columns are ways to fill a NUMA node,
// which cost as many domains as they use; ways to cut a split pod, which cost nothing; and NUMA nodes
// that stay empty (cost nothing) or are lacking.
type relaxation struct {
	pool
	pieces  []piece
	index   map[piece]int
	splits  []kind
	right   []float64   // right-hand side of each row
	inverse [][]float64 // of the basis
	costs   []float64   // of the columns of the basis
	left    []float64   // how often each column of the basis is used
	prices  []float64   // of each row
	value   []float64   // scratch: by domains used and room in the last one
	last    []int
}

func newRelaxation(p pool, numas int, pods map[kind]int) *relaxation {
	r := &relaxation{pool: p, index: map[piece]int{}}
	count := map[piece]float64{}
	need := func(x piece, n int) { count[x] += float64(n) }
	for _, k := range slices.SortedFunc(maps.Keys(pods), compareKinds) {
		n := pods[k]
		switch {
		case k.domains > (k.cpus+p.l3-1)/p.l3+1:
			need(piece{0, 1 % p.l3}, k.cpus*n) // split further: as if any cut were possible
			if p.l3 == 1 {
				need(piece{1, 0}, k.cpus*n)
			}
		case k.domains > 0:
			r.splits = append(r.splits, k)
		default:
			need(piece{k.cpus / p.l3, k.cpus % p.l3}, n)
		}
	}
	delete(count, piece{})
	if len(r.splits) > 0 { // all pieces into which pods are cut
		need(piece{1, 0}, 0)
		for rest := 1; rest < p.l3; rest++ {
			need(piece{0, rest}, 0)
		}
	}
	r.pieces = slices.SortedFunc(maps.Keys(count), func(a, b piece) int { return cmp.Or(a.rest-b.rest, a.fills-b.fills) })
	for i, x := range r.pieces {
		r.index[x] = i
		r.right = append(r.right, count[x])
	}
	for _, k := range r.splits {
		r.right = append(r.right, float64(pods[k]))
	}
	r.right = append(r.right, float64(numas))
	r.start()
	states := (p.perNUMA + 1) * (p.l3 + 1)
	r.value, r.last = make([]float64, states), make([]int, states)
	return r
}

func compareKinds(a, b kind) int { return cmp.Or(a.cpus-b.cpus, a.domains-b.domains, a.numas-b.numas) }

// start makes the first basis: NUMA nodes full of one piece each, each split pod in one way, and the
// NUMA nodes that are then empty or lacking.
func (r *relaxation) start() {
	rows, pieces := len(r.right), len(r.pieces)
	columns := make([][]float64, rows)
	r.costs = make([]float64, rows)
	for i, x := range r.pieces {
		columns[i] = make([]float64, rows)
		most, used := 0, 0
		for n := 1; ; n++ {
			u := n * x.fills
			if x.rest > 0 {
				u += (n + r.l3/x.rest - 1) / (r.l3 / x.rest)
			}
			if u > r.perNUMA {
				break
			}
			most, used = n, u
		}
		columns[i][i], columns[i][rows-1], r.costs[i] = float64(most), 1, float64(used)
	}
	for i, k := range r.splits {
		columns[pieces+i] = make([]float64, rows)
		columns[pieces+i][pieces+i] = 1
		_, cut := r.cheapestCut(k, func(int) float64 { return 1 })
		for _, cpus := range cut {
			columns[pieces+i][r.pieceOf(cpus)]--
		}
	}
	// The basis is triangular in blocks, so its inverse follows row by row.
	r.inverse = make([][]float64, rows)
	for i := range r.inverse {
		r.inverse[i] = make([]float64, rows)
	}
	for i := range r.splits {
		r.inverse[pieces+i][pieces+i] = 1
	}
	for i := range r.pieces {
		most := columns[i][i]
		r.inverse[i][i] = 1 / most
		for k := range r.splits {
			r.inverse[i][pieces+k] = -columns[pieces+k][i] / most
		}
	}
	empty := r.inverse[rows-1]
	empty[rows-1] = 1
	for i := range r.pieces {
		for k := range rows - 1 {
			empty[k] -= r.inverse[i][k]
		}
	}
	r.left = make([]float64, rows)
	for i := range rows {
		for k, v := range r.right {
			r.left[i] += r.inverse[i][k] * v
		}
	}
	if r.left[rows-1] < 0 {
		r.left[rows-1], r.costs[rows-1] = -r.left[rows-1], lacking
		for k := range empty {
			empty[k] = -empty[k]
		}
	}
	r.prices = make([]float64, rows)
}

// pieceOf returns the row of a piece of a split pod.
func (r *relaxation) pieceOf(cpus int) int {
	if cpus == r.l3 {
		return r.index[piece{1, 0}]
	}
	return r.index[piece{0, cpus}]
}

// cheapestCut returns the cheapest way to cut a split pod into pieces of at most a domain, at most as
// many as it has domains: worth is the price of a piece. Compared with full domains everywhere, each
// domain may have fewer CPUs, and all together have a known number of CPUs fewer.
func (r *relaxation) cheapestCut(k kind, worth func(cpus int) float64) (float64, []int) {
	full := worth(r.l3)
	missing := k.domains*r.l3 - k.cpus
	most := min(k.domains, missing)
	type state struct {
		price float64
		less  int
	}
	table := make([][]state, most+1) // by number of domains that are not full, and CPUs missing there
	for n := range table {
		table[n] = make([]state, missing+1)
		for m := range table[n] {
			table[n][m] = state{price: math.Inf(1)}
			if n == 0 {
				continue
			}
			for less := 1; less <= min(r.l3, m); less++ {
				v := -full
				if less < r.l3 {
					v += worth(r.l3 - less)
				}
				if v += table[n-1][m-less].price; v < table[n][m].price {
					table[n][m] = state{v, less}
				}
			}
		}
		if n == 0 {
			table[0][0].price = 0
		}
	}
	best := 0
	for n := range table {
		if table[n][missing].price < table[best][missing].price {
			best = n
		}
	}
	var cut []int
	for n, m := best, missing; n > 0; n-- {
		less := table[n][m].less
		if less < r.l3 {
			cut = append(cut, r.l3-less)
		}
		m -= less
	}
	for range k.domains - best {
		cut = append(cut, r.l3)
	}
	return table[best][missing].price + float64(k.domains)*full, cut
}

// price computes the prices of the present basis, a bound from them, and the column that improves
// the basis most, with its cost. The column is nil if no column does.
func (r *relaxation) price(bound *float64) (column []float64, c float64) {
	rows := len(r.right)
	for i := range rows {
		r.prices[i] = 0
		for k, cost := range r.costs {
			r.prices[i] += cost * r.inverse[k][i]
		}
	}
	gain := 1e-7
	improve := func(by float64, cost float64, make func() []float64) {
		if by > gain {
			gain, column, c = by, make(), cost
		}
	}
	node := -r.prices[rows-1] // what a NUMA node costs
	used, worth := r.bestFilling()
	improve(worth-float64(used)-node, float64(used), func() []float64 { return r.filling(used) })
	*bound = -r.right[rows-1] * max(0, worth-float64(used))
	for i := range r.pieces {
		*bound += max(0, r.prices[i]) * r.right[i]
	}
	for i, k := range r.splits {
		row := len(r.pieces) + i
		price, cut := r.cheapestCut(k, func(cpus int) float64 { return max(0, r.prices[r.pieceOf(cpus)]) })
		*bound += price * r.right[row]
		actual := 0.0
		for _, cpus := range cut {
			actual += r.prices[r.pieceOf(cpus)]
		}
		improve(r.prices[row]-actual, 0, func() []float64 {
			column := make([]float64, rows)
			column[row] = 1
			for _, cpus := range cut {
				column[r.pieceOf(cpus)]--
			}
			return column
		})
	}
	improve(-node, 0, func() []float64 { return r.nodes(1) })
	improve(node-lacking, lacking, func() []float64 { return r.nodes(-1) })
	return column, c
}

func (r *relaxation) nodes(sign float64) []float64 {
	column := make([]float64, len(r.right))
	column[len(column)-1] = sign
	return column
}

// bestFilling finds the filling of a NUMA node that is worth most beyond the domains that it uses.
func (r *relaxation) bestFilling() (used int, worth float64) {
	// State domains*width+room: the best filling of so many domains that nothing is in yet, and of that
	// room in another one. last is the piece to take first, or -1 for none.
	width := r.l3 + 1
	for state := range r.value {
		domains, room := state/width, state%width
		r.value[state], r.last[state] = 0, -1
		if state > 0 {
			r.value[state] = r.value[state-1] // leave a CPU of the room, or begin with the next domain
		}
		for k, x := range r.pieces {
			if r.prices[k] <= 0 || x.fills > domains || x.rest > room || x.rest == 0 && room > 0 {
				continue
			}
			if v := r.value[state-x.fills*width-x.rest] + r.prices[k]; v > r.value[state] {
				r.value[state], r.last[state] = v, k
			}
		}
	}
	for domains := range r.perNUMA + 1 {
		if v := r.value[domains*width]; v-float64(domains) > worth-float64(used) {
			used, worth = domains, v
		}
	}
	return used, worth
}

// filling returns the column of the best filling of so many domains.
func (r *relaxation) filling(domains int) []float64 {
	width := r.l3 + 1
	column := r.nodes(1)
	for state := domains * width; state > 0; {
		k := r.last[state]
		if k < 0 {
			state--
			continue
		}
		column[k]++
		state -= r.pieces[k].fills*width + r.pieces[k].rest
	}
	return column
}

// pivot brings a column into the basis, and reports whether that was possible.
func (r *relaxation) pivot(entering []float64, c float64) bool {
	n := len(r.right)
	column := make([]float64, n)
	out := -1
	for k := range n {
		for i, v := range entering {
			column[k] += r.inverse[k][i] * v
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
	r.costs[out] = c
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
