package allocate

import (
	"cmp"
	"slices"
)

// numaSearch looks for the best set of a number of NUMA nodes on a machine with too many of them to
// try every set. It goes up the machine's numaTree, and keeps for each cluster, number of nodes and
// number of CPUs only the best way to take them, because distances and costs add up over clusters:
//
//	NUMA nodes ──▶ groups of alike ones ──merge──▶ clusters ──merge──▶ machine
//
// The number of NUMA nodes is the smallest that suffices. So together they leave at most as many CPUs
// as the largest of them have too many (slack), and only few numbers of CPUs have to be considered
// for each number of nodes.
//
// With local memory the cheapest way may lack room, so up to waysMax ways are kept for the same
// numbers, among them the one with the most memory. So whatever fits is found.
type numaSearch struct {
	s      *solver
	rows   [][]cost // by NUMA node: the costs of taking CPUs; nil if it has none
	memory []int64  // by NUMA node: free memory, up to what is asked for
	usable int      // number of NUMA nodes with CPUs
	ways   int      // number of ways kept for the same numbers of nodes and CPUs
	// Of the current search:
	nodes int // number of NUMA nodes to take
	among int // number of NUMA nodes from which they are taken
	slack int // CPUs of the largest nodes, beyond those that are asked for
}

// waysMax bounds the number of ways that are kept for the same numbers of nodes and CPUs.
const waysMax = 8

// way is one way to take CPUs from NUMA nodes. Its cost has the sum of the distances in the fields
// NUMANodes and Distance together.
type way struct {
	cost   cost
	memory int64
	// The way consists of two parts. nodes and cpus are those of the left one; left and right are the
	// positions of the parts among the ways for their numbers. For a group, the left part is the way
	// without its last NUMA node.
	nodes, cpus int16
	left, right int8
}

// part holds the best ways to take CPUs from some NUMA nodes.
type part struct {
	room        []int   // by number of nodes: the most CPUs that so many of them have
	tables      []table // by number of nodes
	left, right *part   // nil for a group
	members     []int   // of a group
}

// table holds the ways for one number of nodes, by the number of CPUs from first upwards. Ways for
// the same number are in ascending order of cost and memory; unused entries are infinite.
type table struct {
	first int
	ways  []way
}

// contribution is a number of CPUs to take from a NUMA node.
type contribution struct{ numa, cpus int }

// distanceMask covers the fields that hold the sum of the distances of a way.
const distanceMask = (1<<(bitsDistance+bitsNUMA) - 1) << shiftDistance

// searchNUMA is severalNUMA for layouts with a tree.
func (s *solver) searchNUMA(takes *[]take) cost {
	l := s.n.layout
	q := &numaSearch{s: s, rows: make([][]cost, len(l.numas)), memory: make([]int64, len(l.numas)), ways: 1}
	if s.a.local {
		q.ways = waysMax
	}
	regular := q.read()
	for q.nodes = q.fewest(regular); q.nodes <= min(q.usable, s.a.cpus); q.nodes++ {
		best, parts := q.search(&l.tree.root)
		if best.isInfinite() {
			continue
		}
		if !l.tree.exact {
			best, parts = q.improve(best, parts)
		}
		if takes != nil {
			*takes = (*takes)[:0]
			for _, p := range parts {
				row := make([]cost, p.cpus+1)
				s.numaRow(p.numa, row, true, 0, 0)
				*takes = s.backtrack(p.numa, p.cpus, *takes)
			}
		}
		return best
	}
	return infinite
}

// read fills in what the NUMA nodes can give, and reports whether each can give any multiple of the
// grain up to what it has.
func (q *numaSearch) read() bool {
	s := q.s
	grain, regular := s.grain(), true
	for i := range q.rows {
		if s.numaCap[i] == 0 {
			continue
		}
		q.usable++
		q.rows[i] = make([]cost, min(s.numaCap[i], s.a.cpus)+1)
		s.numaRow(i, q.rows[i], false, 0, 0)
		for t, c := range q.rows[i] {
			regular = regular && c.isInfinite() == (t%grain != 0)
		}
		if s.a.local {
			q.memory[i] = min(max(0, s.n.memoryFree[i]), s.a.memory)
		}
	}
	if q.usable >= 1<<bitsWholeNUMA {
		return regular // more than the cost can count
	}
	for i, row := range q.rows {
		for t := 1; t < len(row) && s.n.numaIsIdle(i); t++ {
			row[t] = row[t].plus(cost{lo: 1 << shiftWholeNUMA(s.a.bind)})
		}
	}
	return regular
}

// fewest returns a lower bound of the number of NUMA nodes, which is exact without conditions on
// memory.
func (q *numaSearch) fewest(regular bool) int {
	s := q.s
	count := func(want int64, has func(i int) int64) int {
		var all []int64
		for i, row := range q.rows {
			if row != nil {
				all = append(all, has(i))
			}
		}
		slices.Sort(all)
		n := 0
		for ; n < len(all) && want > 0; n++ {
			want -= all[len(all)-1-n]
		}
		return n + boolInt(want > 0)
	}
	nodes := max(2, count(int64(s.a.cpus), func(i int) int64 { return int64(s.numaCap[i]) }))
	if s.a.local {
		nodes = max(nodes, count(s.a.memory, func(i int) int64 { return q.memory[i] }))
	}
	if !regular {
		nodes = max(nodes, q.fewestExact())
	}
	return nodes
}

// fewestExact returns the smallest number of NUMA nodes that can give exactly the CPUs.
func (q *numaSearch) fewestExact() int {
	nodes := make([]int, q.s.a.cpus+1) // by number of CPUs
	for t := 1; t < len(nodes); t++ {
		nodes[t] = len(q.rows) + 1
	}
	for _, row := range q.rows {
		for t := len(nodes) - 1; t > 0; t-- {
			for x := 1; x < len(row) && x <= t; x++ {
				if !row[x].isInfinite() {
					nodes[t] = min(nodes[t], nodes[t-x]+1)
				}
			}
		}
		q.s.work += len(nodes) * len(row)
	}
	return nodes[len(nodes)-1]
}

// search returns the best way to take the CPUs from exactly q.nodes NUMA nodes of a cluster.
func (q *numaSearch) search(c *cluster) (cost, []contribution) {
	room := q.roomOf(c.members(nil))
	if q.among = len(room) - 1; q.among < q.nodes || room[q.nodes] < q.s.a.cpus {
		return infinite, nil
	}
	q.slack = room[q.nodes] - q.s.a.cpus
	p := q.partOf(c)
	for i, w := range q.at(p, q.nodes, q.s.a.cpus) {
		if w.cost.isInfinite() || q.s.a.local && w.memory < q.s.a.memory {
			continue
		}
		parts := q.unfold(p, q.nodes, q.s.a.cpus, i, nil)
		slices.SortFunc(parts, func(a, b contribution) int { return a.numa - b.numa })
		return q.total(w.cost, parts), parts
	}
	return infinite, nil
}

// total returns the cost of a choice with its true distances.
func (q *numaSearch) total(c cost, parts []contribution) cost {
	distance := 0
	for x, a := range parts {
		for _, b := range parts[:x] {
			distance += q.s.n.layout.distance(a.numa, b.numa)
		}
	}
	c.hi &^= distanceMask
	return c.plus(Cost{NUMANodes: len(parts), Distance: distance}.pack(q.s.a.bind))
}

// roomOf returns the most CPUs that 0, 1, 2... of the NUMA nodes have. It skips nodes without CPUs.
func (q *numaSearch) roomOf(numas []int) []int {
	room := []int{0}
	for _, i := range numas {
		if q.rows[i] != nil {
			room = append(room, q.s.numaCap[i])
		}
	}
	slices.SortFunc(room[1:], func(a, b int) int { return b - a })
	for k := 1; k < len(room); k++ {
		room[k] += room[k-1]
	}
	return room
}

// members appends the cluster's NUMA nodes.
func (c *cluster) members(out []int) []int {
	if len(c.children) == 0 {
		return append(out, c.numa)
	}
	for k := range c.children {
		out = c.children[k].members(out)
	}
	return out
}

// partOf returns the part of a cluster, or nil if none of its NUMA nodes has CPUs.
func (q *numaSearch) partOf(c *cluster) *part {
	children := c.children
	if len(children) == 0 {
		children = []cluster{*c}
	}
	var parts []*part
	for k := range children {
		child := &children[k]
		if len(child.children) > 0 {
			if p := q.partOf(child); p != nil {
				parts = append(parts, p)
			}
			continue
		}
		if q.rows[child.numa] == nil {
			continue
		}
		alike := slices.IndexFunc(parts, func(p *part) bool { return p.tables == nil && q.alike(p.members[0], child.numa) })
		if alike < 0 {
			alike, parts = len(parts), append(parts, &part{})
		}
		parts[alike].members = append(parts[alike].members, child.numa)
	}
	var all *part
	for _, p := range parts {
		if p.tables == nil {
			q.fillGroup(p, c.distance)
		}
		if all == nil {
			all = p
		} else {
			all = q.merge(all, p, c.distance)
		}
	}
	return all
}

func (q *numaSearch) alike(i, j int) bool {
	return q.memory[i] == q.memory[j] && slices.Equal(q.rows[i], q.rows[j])
}

// table returns an empty table for a number of nodes of a part.
func (q *numaSearch) table(p *part, nodes int) table {
	first := max(p.room[nodes]-q.slack, nodes)
	last := min(p.room[nodes], q.s.a.cpus-(q.nodes-nodes))
	t := table{first, make([]way, max(0, last-first+1)*q.ways)}
	for i := range t.ways {
		t.ways[i].cost = infinite
	}
	return t
}

// at returns the ways to take the CPUs from so many nodes of a part.
func (q *numaSearch) at(p *part, nodes, cpus int) []way {
	if p == nil || nodes >= len(p.tables) {
		return nil
	}
	t := &p.tables[nodes]
	i := (cpus - t.first) * q.ways
	if i < 0 || i >= len(t.ways) {
		return nil
	}
	return t.ways[i : i+q.ways]
}

// fillGroup fills the tables of a group of alike NUMA nodes.
func (q *numaSearch) fillGroup(p *part, distance int) {
	p.room = q.roomOf(p.members)
	row, memory := q.rows[p.members[0]], q.memory[p.members[0]]
	p.tables = []table{{0, make([]way, q.ways)}}
	for i := 1; i < q.ways; i++ {
		p.tables[0].ways[i].cost = infinite
	}
	for nodes := 1; nodes < len(p.room) && nodes <= q.nodes; nodes++ {
		p.tables = append(p.tables, q.table(p, nodes))
		before := &p.tables[nodes-1]
		far := cost{hi: uint64(distance*(nodes-1)) << shiftDistance}
		for k, w := range slices.Backward(before.ways) {
			if w.cost.isInfinite() {
				continue
			}
			cpus := before.first + k/q.ways
			for x := 1; x < len(row); x++ {
				if into := q.at(p, nodes, cpus+x); into != nil && !row[x].isInfinite() {
					add(into, way{w.cost.plus(row[x]).plus(far), min(w.memory+memory, q.s.a.memory), int16(nodes - 1), int16(cpus),
						int8(k % q.ways), 0})
				}
			}
		}
		q.s.work += len(before.ways) * len(row)
	}
}

// merge returns the part of two parts' NUMA nodes, which have that distance from each other.
func (q *numaSearch) merge(left, right *part, distance int) *part {
	p := &part{left: left, right: right, room: mergeRoom(left.room, right.room)}
	for nodes := range min(len(p.room)-1, q.nodes) + 1 {
		if q.nodes-nodes > q.among-(len(p.room)-1) { // the other parts have too few nodes for the rest
			p.tables = append(p.tables, table{})
			continue
		}
		p.tables = append(p.tables, q.table(p, nodes))
		// From the most nodes of the left part downwards, and in join from its most CPUs downwards: of
		// equal choices, low NUMA nodes win.
		for n := min(nodes, len(left.tables)-1); n >= 0 && nodes-n < len(right.tables); n-- {
			far := cost{hi: uint64(distance*n*(nodes-n)) << shiftDistance}
			q.join(p, nodes, n, &left.tables[n], &right.tables[nodes-n], far)
		}
	}
	return p
}

// join adds to p all ways that consist of a way with n nodes of the left part and one of the right.
func (q *numaSearch) join(p *part, nodes, n int, left, right *table, far cost) {
	into := &p.tables[nodes]
	cpusMax := into.first + len(into.ways)/q.ways - 1
	for i := len(left.ways) - 1; i >= 0; i-- {
		a := &left.ways[i]
		if a.cost.isInfinite() {
			continue
		}
		aCPUs := left.first + i/q.ways
		base := a.cost.plus(far)
		from := max(0, into.first-aCPUs-right.first) * q.ways
		to := min(len(right.ways), (cpusMax-aCPUs-right.first+1)*q.ways)
		for j := from; j < to; j++ {
			b := &right.ways[j]
			if b.cost.isInfinite() {
				continue
			}
			at := (aCPUs + right.first + j/q.ways - into.first) * q.ways
			c := base.plus(b.cost)
			if q.ways == 1 && !c.less(into.ways[at].cost) {
				continue
			}
			add(into.ways[at:at+q.ways], way{c, min(a.memory+b.memory, q.s.a.memory), int16(n), int16(aCPUs),
				int8(i % q.ways), int8(j % q.ways)})
		}
		q.s.work += max(0, to-from)
	}
}

func mergeRoom(a, b []int) []int {
	out := []int{0}
	i, j := 1, 1
	for i < len(a) || j < len(b) {
		more := 0
		if j == len(b) || i < len(a) && a[i]-a[i-1] >= b[j]-b[j-1] {
			more = a[i] - a[i-1]
			i++
		} else {
			more = b[j] - b[j-1]
			j++
		}
		out = append(out, out[len(out)-1]+more)
	}
	return out
}

// add adds a way to those for the same numbers of nodes and CPUs, unless another costs no more and
// has no less memory. If the list is full it drops a way, but never the cheapest or the one with the
// most memory.
func add(ways []way, w way) {
	i := 0
	for ; i < len(ways) && !w.cost.less(ways[i].cost); i++ {
		if ways[i].memory >= w.memory {
			return
		}
	}
	end := i // ways[i:end] cost more and have no more memory
	for end < len(ways) && !ways[end].cost.isInfinite() && ways[end].memory <= w.memory {
		end++
	}
	last := len(ways) - 1
	switch {
	case end > i:
		ways[i] = w
		rest := copy(ways[i+1:], ways[end:])
		for k := i + 1 + rest; k <= last; k++ {
			ways[k].cost = infinite
		}
	case ways[last].cost.isInfinite(): // there is room
		copy(ways[i+1:], ways[i:last])
		ways[i] = w
	case i > last:
		ways[last] = w
	case i < last:
		copy(ways[i+1:last], ways[i:last-1])
		ways[i] = w
	}
}

// unfold appends what each NUMA node gives in a way.
func (q *numaSearch) unfold(p *part, nodes, cpus, at int, out []contribution) []contribution {
	if nodes == 0 {
		return out
	}
	w := q.at(p, nodes, cpus)[at]
	if p.left == nil {
		out = append(out, contribution{p.members[nodes-1], cpus - int(w.cpus)})
		return q.unfold(p, nodes-1, int(w.cpus), int(w.left), out)
	}
	out = q.unfold(p.left, int(w.nodes), int(w.cpus), int(w.left), out)
	return q.unfold(p.right, nodes-int(w.nodes), cpus-int(w.cpus), int(w.right), out)
}

// nearMax bounds the number of sets that improve tries.
const nearMax = 4

// improve looks for a better choice on machines whose distances are not those of their tree: it tries
// the nearest of the sets that grow from each NUMA node.
func (q *numaSearch) improve(best cost, parts []contribution) (cost, []contribution) {
	var sets []subset
	for i, row := range q.rows {
		if row != nil {
			if set, ok := q.grow(i); ok && !slices.ContainsFunc(sets, func(o subset) bool { return slices.Equal(o.numas, set.numas) }) {
				sets = append(sets, set)
			}
		}
	}
	slices.SortStableFunc(sets, func(a, b subset) int { return cmp.Compare(a.distance, b.distance) })
	for _, set := range sets[:min(len(sets), nearMax)] {
		c := &cluster{}
		for _, i := range set.numas {
			c.children = append(c.children, cluster{numa: i})
		}
		if found, its := q.search(c); found.less(best) {
			best, parts = found, its
		}
	}
	return best, parts
}

// grow returns a set of q.nodes NUMA nodes with enough CPUs: the first, and always the nearest to
// those before with which the CPUs still suffice.
func (q *numaSearch) grow(first int) (subset, bool) {
	s, l := q.s, q.s.n.layout
	var rest []int // the others, those with the most CPUs first
	for i, row := range q.rows {
		if row != nil && i != first {
			rest = append(rest, i)
		}
	}
	slices.SortStableFunc(rest, func(a, b int) int { return s.numaCap[b] - s.numaCap[a] })
	set := subset{numas: []int{first}}
	room := s.numaCap[first]
	far := make([]int, len(l.numas)) // sum of the distances to the set
	last := first
	for len(set.numas) < q.nodes {
		more := q.nodes - len(set.numas) // nodes to add, with this one
		largest := room                  // with the largest of them
		for _, i := range rest[:more] {
			largest += s.numaCap[i]
		}
		next := -1
		for k, i := range rest {
			far[i] += l.distance(max(i, last), min(i, last))
			with := largest
			if k >= more {
				with += s.numaCap[i] - s.numaCap[rest[more-1]]
			}
			if with >= s.a.cpus && (next < 0 || far[i] < far[rest[next]]) {
				next = k
			}
		}
		if next < 0 {
			return set, false
		}
		last = rest[next]
		set.numas, set.distance, room = append(set.numas, last), set.distance+far[last], room+s.numaCap[last]
		rest = slices.Delete(rest, next, next+1)
	}
	slices.Sort(set.numas)
	return set, room >= s.a.cpus
}
