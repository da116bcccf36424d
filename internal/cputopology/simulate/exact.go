package simulate

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// exactSteps bounds the search for a packing on one node. Most nodes take a few hundred.
const exactSteps = 10_000

// exact decides whether pods can be packed into a number of domains. It fills NUMA node after NUMA node,
// and in each domain after domain, and leaves a branch as soon as more CPUs are left over in the domains
// in use than their number allows. That prunes best where the packing has to be tight.
//
// The order of the search loses nothing: some NUMA node has the largest rest of those left, and is taken
// to be the next one; in a NUMA node, domains are filled in the order of their largest rests, and each
// domain from its largest rest down.
type exact struct {
	pool
	bundles []bundle
	left    []int // by bundle
	choices []choice
	pending []int // by size: rests of bundles taken that still need room in the present NUMA node
	waiting int   // their number
	numas   int   // that nothing is in yet
	room    int   // domains of the present NUMA node that nothing is in yet
	slack   int   // CPUs that may be left over in the domains not yet filled
	steps   int
	failed  map[string]bool // states from which no packing was found
	key     []byte
}

// bundle is what must be in one NUMA node: domains that are filled, and rests, largest first. A pod that
// is not split is one bundle of one rest at most.
type bundle struct {
	fills int
	rests []int
}

// choice is a rest that may be put into a domain: of a bundle, or one that is pending. Pending rests
// follow the bundles with the same rest.
type choice struct{ rest, bundle int }

const pending = math.MaxInt32

// packs reports whether pods can be packed into at most so many domains. known is false if the search was
// given up.
func packs(p pool, numas int, pods map[kind]int, domains int) (ok, known bool) {
	whole := map[string]int{}
	all := map[string]bundle{}
	var split []kind
	cpus := 0
	for k, n := range pods {
		cpus += k.cpus * n
		if k.domains > 0 {
			split = append(split, slices.Repeat([]kind{k}, n)...)
			continue
		}
		b := bundle{fills: k.cpus / p.l3}
		if rest := k.cpus % p.l3; rest > 0 {
			b.rests = []int{rest}
		}
		whole[b.name()] += n
		all[b.name()] = b
	}
	slices.SortFunc(split, compareKinds)
	e := exact{pool: p, numas: numas, slack: min(domains, numas*p.perNUMA)*p.l3 - cpus, steps: exactSteps}
	if e.slack < 0 {
		return false, true
	}
	ok = e.cut(split, nil, whole, all)
	return ok, ok || e.steps > 0
}

func (b bundle) name() string { return fmt.Sprint(b) }

// cut tries every way to cut the split pods into pieces of at most a domain, and to divide the pieces
// among as many NUMA nodes as the pod may use. pieces are those of the first pod so far, in descending
// order.
func (e *exact) cut(split []kind, pieces []int, whole map[string]int, all map[string]bundle) bool {
	if len(split) == 0 {
		return e.pack(whole, all)
	}
	k := split[0]
	left := k.cpus
	for _, size := range pieces {
		left -= size
	}
	if left == 0 {
		return e.divide(pieces, make([]bundle, 0, k.numas), k.numas, func(bundles []bundle) bool {
			for _, b := range bundles {
				whole[b.name()]++
				all[b.name()] = b
			}
			done := e.cut(split[1:], nil, whole, all)
			for _, b := range bundles {
				whole[b.name()]--
			}
			return done
		})
	}
	most := min(left, e.l3)
	if len(pieces) > 0 {
		most = min(most, pieces[len(pieces)-1])
	}
	for size := most; size > 0 && size*(k.domains-len(pieces)) >= left; size-- {
		if e.cut(split, append(pieces[:len(pieces):len(pieces)], size), whole, all) {
			return true
		}
		if e.steps <= 0 {
			return false
		}
	}
	return false
}

// divide calls with for every way to divide pieces among bundles. As many bundles as there may be leave
// the most freedom.
func (e *exact) divide(pieces []int, bundles []bundle, most int, with func([]bundle) bool) bool {
	if len(pieces) == 0 {
		return with(bundles)
	}
	first, rest := pieces[0], pieces[1:]
	if len(bundles) < most {
		more := append(bundles[:len(bundles):len(bundles)], bundle{}.plus(first, e.l3))
		if e.divide(rest, more, most, with) {
			return true
		}
		if most-len(bundles) >= len(pieces) {
			return false // each piece can have a bundle of its own
		}
	}
	for i := range bundles {
		more := slices.Clone(bundles)
		more[i] = more[i].plus(first, e.l3)
		if e.divide(rest, more, most, with) {
			return true
		}
	}
	return false
}

func (b bundle) plus(cpus, l3 int) bundle {
	if cpus == l3 {
		return bundle{b.fills + 1, b.rests}
	}
	return bundle{b.fills, append(slices.Clone(b.rests), cpus)}
}

// pack packs bundles, so many of each.
func (e *exact) pack(count map[string]int, all map[string]bundle) bool {
	e.bundles, e.left, e.choices, e.failed = nil, nil, nil, map[string]bool{}
	for name, n := range count {
		if n > 0 {
			e.bundles = append(e.bundles, all[name])
		}
	}
	slices.SortFunc(e.bundles, func(a, b bundle) int { return cmp.Or(b.fills-a.fills, slices.Compare(b.rests, a.rests)) })
	for i, b := range e.bundles {
		e.left = append(e.left, count[b.name()])
		for j, rest := range b.rests {
			if j == 0 || b.rests[j-1] != rest {
				e.choices = append(e.choices, choice{rest, i})
			}
		}
		if len(b.rests) == 0 {
			e.choices = append(e.choices, choice{0, i})
		}
		for _, rest := range b.rests {
			if c := (choice{rest, pending}); len(b.rests) > 1 && !slices.Contains(e.choices, c) {
				e.choices = append(e.choices, c)
			}
		}
	}
	slices.SortFunc(e.choices, func(a, b choice) int { return cmp.Or(b.rest-a.rest, a.bundle-b.bundle) })
	e.pending, e.waiting = make([]int, e.l3+1), 0
	return e.nextNUMA()
}

// take takes the rest of a choice, if there is one and its domains have room, and calls then.
func (e *exact) take(c choice, room int, then func() bool) bool {
	if c.bundle == pending {
		if e.pending[c.rest] == 0 || e.room < room {
			return false
		}
		e.pending[c.rest]--
		e.waiting--
		e.room -= room
		done := then()
		e.room += room
		e.waiting++
		e.pending[c.rest]++
		return done
	}
	b := e.bundles[c.bundle]
	if e.left[c.bundle] == 0 || e.room < room+b.fills {
		return false
	}
	others := func(n int) {
		own := c.rest > 0 // the first rest of this size is the one taken
		for _, rest := range b.rests {
			if own && rest == c.rest {
				own = false
				continue
			}
			e.pending[rest] += n
			e.waiting += n
		}
	}
	e.left[c.bundle]--
	e.room -= room + b.fills
	others(1)
	done := then()
	others(-1)
	e.room += room + b.fills
	e.left[c.bundle]++
	return done
}

// nextNUMA begins a NUMA node with the first bundle that is left.
func (e *exact) nextNUMA() bool {
	if e.waiting > 0 {
		return false
	}
	first := slices.IndexFunc(e.choices, func(c choice) bool { return c.bundle != pending && e.left[c.bundle] > 0 })
	if first < 0 {
		return true
	}
	if e.numas == 0 {
		return false
	}
	room := e.room
	e.numas, e.room = e.numas-1, e.perNUMA
	done := e.begin(first)
	e.numas, e.room = e.numas+1, room
	return done
}

// nextDomain begins another domain of the NUMA node, with a choice at or after from, or the next NUMA
// node.
func (e *exact) nextDomain(from int) bool {
	if e.steps--; e.steps <= 0 {
		return false
	}
	e.key = e.key[:0]
	for _, n := range [...]int{e.numas, e.room, from, e.slack} {
		e.key = binary.AppendUvarint(e.key, uint64(n))
	}
	for _, counts := range [...][]int{e.left, e.pending} {
		for _, n := range counts {
			e.key = binary.AppendUvarint(e.key, uint64(n))
		}
	}
	if e.failed[string(e.key)] {
		return false
	}
	key := string(e.key)
	for k := from; k < len(e.choices); k++ {
		if e.begin(k) {
			return true
		}
	}
	if e.nextNUMA() {
		return true
	}
	e.failed[key] = true
	return false
}

// begin takes a choice as the first of a domain.
func (e *exact) begin(k int) bool {
	c := e.choices[k]
	if c.rest == 0 {
		return e.take(c, 0, func() bool { return e.nextDomain(k) })
	}
	return e.take(c, 1, func() bool { return e.fill(k, k, e.l3-c.rest) })
}

// fill adds choices at or after from to a domain that was begun with first, and has a gap.
func (e *exact) fill(first, from, gap int) bool {
	if e.steps--; e.steps <= 0 {
		return false
	}
	for k := from; k < len(e.choices) && e.choices[k].rest > 0; k++ {
		c := e.choices[k]
		if c.rest <= gap && e.take(c, 0, func() bool { return e.fill(first, k, gap-c.rest) }) {
			return true
		}
	}
	if gap > e.slack {
		return false
	}
	e.slack -= gap
	done := e.nextDomain(first)
	e.slack += gap
	return done
}
