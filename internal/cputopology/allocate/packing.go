package allocate

import (
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/request"
)

// If pods are moved within their nodes (package repack), gaps between them do not stay where they
// are. The choice of a node then depends on how many L3 domains its pods need when repacked, and on
// what could be added without one more domain. Both depend only on numbers of CPUs: for each pod,
// the number that it needs beyond whole L3 domains, which is called its rest.

// packingL3Max is the size, in CPUs, of the largest L3 domain for which packings are computed, and
// packingDomains is the smallest number of domains.
const (
	packingL3Max   = 64
	packingDomains = 4
)

// packingBound is a lower bound of the number of bins (L3 domains) into which rests can be packed.
// It consists of weights of the rests such that the weights in one bin never add up to more than
// the capacity: the sum of the weights of all rests, divided by the capacity, is then a lower bound.
// The weights are dual feasible functions (Fekete and Schepers): the size itself, as if rests could
// be cut; the same with rests above size-t rounded up to a whole bin, and rests below t left out;
// and sizes rounded to multiples of 1/k of a bin, which count how many rests of a size fit beside
// each other. In bins of 8 they give the linear relaxation of the problem, and almost so in others.
type packingBound struct {
	size     int
	capacity []int   // by weighting
	weights  [][]int // by weighting, and rest: not decreasing with the rest
	most     [][]int // by weighting, and what is left of a capacity: the largest rest that fits
}

func newPackingBound(size int) *packingBound {
	b := &packingBound{size: size}
	for t := 1; t <= max(1, size/2); t++ {
		b.add(size, func(rest int) int {
			switch {
			case rest > size-t:
				return size
			case rest < t:
				return 0
			}
			return rest
		})
	}
	for k := 1; k <= size; k++ {
		b.add(size*k, func(rest int) int {
			if (k+1)*rest%size == 0 {
				return rest * k
			}
			return (k + 1) * rest / size * size
		})
	}
	return b
}

// add adds a weighting, unless another one is at least as good for every rest.
func (b *packingBound) add(capacity int, weight func(rest int) int) {
	weights := make([]int, b.size)
	divisor := capacity
	for rest := range weights {
		weights[rest] = weight(rest)
		divisor = gcd(weights[rest], divisor)
	}
	capacity /= divisor
	for rest := range weights {
		weights[rest] /= divisor
	}
	worse := func(w []int, c int, than []int, thanC int) bool {
		for rest := range w {
			if w[rest]*thanC > than[rest]*c {
				return false
			}
		}
		return true
	}
	for i := range b.weights {
		if worse(weights, capacity, b.weights[i], b.capacity[i]) {
			return
		}
	}
	for i := len(b.weights) - 1; i >= 0; i-- {
		if worse(b.weights[i], b.capacity[i], weights, capacity) {
			b.weights, b.capacity, b.most = slices.Delete(b.weights, i, i+1), slices.Delete(b.capacity, i, i+1),
				slices.Delete(b.most, i, i+1)
		}
	}
	most := make([]int, capacity)
	for left := range most {
		for rest, w := range weights {
			if w <= left {
				most[left] = rest
			}
		}
	}
	b.weights, b.capacity, b.most = append(b.weights, weights), append(b.capacity, capacity), append(b.most, most)
}

// sums adds up the weights of the rests of the pods on a node: the CPUs that they need beyond whole
// L3 domains.
func (b *packingBound) sums(n *Node, out []int) []int {
	out = resize(out, len(b.weights))
	clear(out)
	for _, s := range n.sizes {
		rest := s.cpus % b.size
		for i, w := range b.weights {
			out[i] += w[rest] * s.pods
		}
	}
	return out
}

// need returns the bound for the rests with these sums of weights and one more, which may be 0.
func (b *packingBound) need(sums []int, rest int) int {
	need := 0
	for i, sum := range sums {
		c := b.capacity[i]
		need = max(need, (sum+b.weights[i][rest]+c-1)/c)
	}
	return need
}

// FewestL3 returns a lower bound of the number of L3 domains for exclusive pods of these numbers of CPUs, in
// any packing in which none uses more domains than it needs. It is 0 for machines without a bound.
func (l *Layout) FewestL3(sizes []int) int {
	b := l.packing
	if b == nil {
		return 0
	}
	fills, sums := 0, make([]int, len(b.weights))
	for _, cpus := range sizes {
		fills += cpus / b.size
		for i, w := range b.weights {
			sums[i] += w[cpus%b.size]
		}
	}
	return fills + b.need(sums, 0)
}

// room returns the largest rest that could be added to those with these sums and one more, which
// need this many domains, without one more domain.
func (b *packingBound) room(sums []int, rest, need int) int {
	room := b.size - 1
	for i, sum := range sums {
		if left := need*b.capacity[i] - sum - b.weights[i][rest]; left < len(b.most[i]) {
			room = min(room, b.most[i][left])
		}
	}
	return room
}

// packed is the packing of one node, for the state of the node at version.
type packed struct {
	node    *Node
	version uint64
	sums    []int // see packingBound
	need    int
	room    int
	sizes   uint64 // bit r: some pod has a rest of r
}

// packings holds the packings of all nodes of a decision.
type packings struct {
	nodes []packed
	// lost[r] and won[r] are the values of a node's ability to take rests of up to r CPUs without
	// another domain, before it loses and before it gains the ability. Each is the sum over those
	// rests that some pod has; a rest counts more the fewer nodes can take it.
	lost, won [packingL3Max]int
}

// packingWorth is the value of being the only node that can take a rest.
const packingWorth = 600

// see updates the packings of nodes that have changed.
func (p *packings) see(nodes []*Node) {
	if len(p.nodes) < len(nodes) {
		p.nodes = make([]packed, len(nodes))
	}
	var takers [packingL3Max + 1]int // number of nodes, by room
	var sizes uint64
	for i, n := range nodes {
		k := &p.nodes[i]
		b := n.layout.packing
		if b == nil {
			*k = packed{}
			continue
		}
		if k.node != n || k.version != n.version {
			*k = packed{node: n, version: n.version, sums: b.sums(n, k.sums)}
			for _, s := range n.sizes {
				if rest := s.cpus % b.size; rest > 0 {
					k.sizes |= 1 << rest
				}
			}
			k.need = b.need(k.sums, 0)
			k.room = b.room(k.sums, 0, k.need)
		}
		takers[k.room]++
		sizes |= k.sizes
	}
	for r := packingL3Max - 1; r > 0; r-- {
		takers[r] += takers[r+1] // from here: number of nodes that can take r
	}
	for r := 1; r < packingL3Max; r++ {
		p.lost[r], p.won[r] = p.lost[r-1], p.won[r-1]
		if sizes>>r&1 != 0 {
			p.lost[r] += packingWorth / max(1, takers[r])
			p.won[r] += packingWorth / (1 + takers[r])
		}
	}
}

// added is the effect of more CPUs on a node's packing: the additional domains needed, and the room
// left.
type added struct{ domains, room int8 }

// with returns the effect of that many more CPUs on a node's packing.
func (p *packings) with(i, cpus int) added {
	k := &p.nodes[i]
	if k.node == nil {
		return added{}
	}
	b := k.node.layout.packing
	rest := cpus % b.size
	need := b.need(k.sums, rest)
	return added{int8(need - k.need), int8(b.room(k.sums, rest, need))}
}

// A node is too full for moves to be counted on if at most an eighth of its CPUs is idle, and at most half an L3
// domain for each NUMA node (as divisors). Moves need room: on such a node, gaps are smaller than most pods, and
// what could be packed is often not to be reached from the present state. With few NUMA nodes, as many idle CPUs
// are larger gaps.
const packingFull, packingFullL3 = 8, 2

// onNode returns the effect with the idle domains that are broken into now, if the node is too full for
// moves. c is the cost, or a lower bound of it.
func (a added) onNode(n *Node, c cost, bind request.Bind) added {
	if n.tooFullForMoves() {
		const most = 1<<(laterBits-18) - 1 // see later
		a.domains = int8(min(most, c.lo>>shiftWholeL3(bind)&(1<<bitsWholeL3-1)))
	}
	return a
}

// tooFullForMoves reports whether moves cannot be counted on, see packingFull.
func (n *Node) tooFullForMoves() bool {
	most := len(n.layout.cpus) / packingFull
	if b := n.layout.packing; b != nil {
		most = min(most, len(n.layout.numas)*b.size/packingFullL3)
	}
	return n.totalIdle <= most
}

// laterBits is the number of bits of later: one more pod needs one more domain at most.
const laterBits = 32 - bitsCPUs

// later converts the effect into a number by which nodes are compared, lower is better: first the
// additional domains, then the rests that the node can no longer take (or can take now), which
// count more the fewer nodes can take them.
func (p *packings) later(i int, a added) uint32 {
	const unchanged = 1 << 16 // above the largest gain: packingL3Max times packingWorth
	change := 0
	switch before, after := p.nodes[i].room, int(a.room); {
	case p.nodes[i].node == nil:
	case after < before:
		change = p.lost[before] - p.lost[after]
	default:
		change = p.won[before] - p.won[after]
	}
	return uint32(a.domains)<<18 + uint32(unchanged+change)
}
