package allocate

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

// L3Needed returns a lower bound of the number of L3 domains into which rests can be packed:
// rests[i] pods have a rest of i CPUs, and a domain has len(rests) CPUs. For every threshold t of
// up to half a domain: rests above size-t need a domain each; so do those above half and up to
// size-t; and the room that the latter leave can take no more of the rests from t upwards than
// their sum (Martello and Toth's bound L2). The bound is seldom below the true number.
func L3Needed(rests []int) int {
	size := len(rests)
	var countBuf, sumBuf [packingL3Max + 1]int
	count, sum := countBuf[:1], sumBuf[:1] // of rests below an index
	for i, n := range rests {
		count, sum = append(count, count[i]+n), append(sum, sum[i]+i*n)
	}
	need := 0
	for t := 1; t <= size/2; t++ {
		alone := count[size] - count[size-t+1]
		half, halfSum := count[size-t+1]-count[size/2+1], sum[size-t+1]-sum[size/2+1]
		over := max(0, sum[size/2+1]-sum[t]-(half*size-halfSum))
		need = max(need, alone+half+(over+size-1)/size)
	}
	return need
}

// rests adds, to out, the rests of the pods on the node: the CPUs that they need beyond whole L3
// domains.
func (n *Node) rests(out []int) {
	for _, s := range n.sizes {
		if r := s.cpus % len(out); r > 0 {
			out[r] += s.pods
		}
	}
}

// room returns the largest rest that could be added to rests, which need this many domains, without
// one more domain.
func room(rests []int, need int) int {
	lo, hi := 0, len(rests)-1 // lo fits; everything above hi does not
	for lo < hi {
		mid := (lo + hi + 1) / 2
		rests[mid]++
		if L3Needed(rests) > need {
			hi = mid - 1
		} else {
			lo = mid
		}
		rests[mid]--
	}
	return lo
}

// packed is the packing of one node, for the state of the node at version.
type packed struct {
	node    *Node
	version uint64
	need    int
	room    int
	sizes   uint64 // bit r: some pod has a rest of r
}

// packings holds the packings of all nodes of a decision.
type packings struct {
	nodes []packed
	rests [packingL3Max]int
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
		if n.layout.packs == 0 {
			*k = packed{}
			continue
		}
		if k.node != n || k.version != n.version {
			*k = packed{node: n, version: n.version}
			rests := p.rests[:n.layout.packs]
			clear(rests)
			n.rests(rests)
			for r, count := range rests {
				if count > 0 {
					k.sizes |= 1 << r
				}
			}
			k.need = L3Needed(rests)
			k.room = room(rests, k.need)
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
	rests := p.rests[:k.node.layout.packs]
	rest := cpus % len(rests)
	if rest == 0 {
		return added{0, int8(k.room)}
	}
	clear(rests)
	k.node.rests(rests)
	rests[rest]++
	need := L3Needed(rests)
	return added{int8(need - k.need), int8(room(rests, need))}
}

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
