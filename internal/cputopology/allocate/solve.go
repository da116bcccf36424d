package allocate

import (
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// ask describes one set of CPUs to choose. Every wish of the request is either a condition here or
// given up.
type ask struct {
	cpus      int
	bind      request.Bind
	fullCore  bool // each core is taken whole
	isolation request.Isolation
	span      request.Span
	local     bool // the NUMA nodes taken must have room for the memory
	memory    int64
	cores     request.Cores
	share     int
	burst     bool
	violated  request.Fields
}

// asks expands a policy into asks, best first: all wishes kept, then given up one by one in the
// order of request.Fields.
func asks(cpus int, memory int64, p request.Policy) []ask {
	var out []ask
	for give := request.Fields(0); give <= p.Prefer; give++ {
		if give&^p.Prefer != 0 || give&request.MemoryField != 0 && p.Memory == request.AnyMemory ||
			give&request.BindField != 0 && p.Bind != request.FullCore && p.Bind != request.WholeL3 ||
			give&request.SpanField != 0 && p.Span == request.AnySpan ||
			give&request.IsolationField != 0 && p.Isolation == request.NoIsolation ||
			give&request.CoresField != 0 && p.Cores == request.AnyCores {
			continue // giving up a wish that was not expressed gains nothing
		}
		a := ask{cpus: cpus, bind: p.Bind, isolation: p.Isolation, span: p.Span, local: p.Memory != request.AnyMemory,
			memory: memory, cores: p.Cores, share: p.Share, burst: p.Burst, violated: give}
		if give&request.BindField != 0 {
			a.bind = request.AnyCPU
		}
		if give&request.IsolationField != 0 {
			a.isolation = request.NoIsolation
		}
		if give&request.SpanField != 0 {
			a.span = request.AnySpan
		}
		if give&request.MemoryField != 0 {
			a.local = false
		}
		if give&request.CoresField != 0 {
			a.cores = request.AnyCores
		}
		a.fullCore = a.bind == request.FullCore
		out = append(out, a)
	}
	return out
}

// take is a number of CPUs to take from one L3 domain.
type take struct{ cell, cpus int }

// solver chooses CPUs on a node. It holds only scratch memory; the zero value is ready to use.
//
// The choice is exact: costs add up over cores within an L3 domain, over L3 domains within a NUMA
// node, and over NUMA nodes, so three nested knapsacks find the minimum. It is fast because most
// requests never reach the knapsacks: if one L3 domain suffices, the cost of each domain follows
// from two counters.
type solver struct {
	n *Node
	a *ask
	// idleOnly restricts the choice to CPUs that no container uses. It is always set for exclusive
	// requests. For shared requests it is set as long as idle CPUs suffice, which cost no
	// references and so win over all others.
	idleOnly bool
	socket   int    // only L3 domains of this socket; -1 for all
	eligible []int  // by L3 domain: CPUs that may be taken
	numaCap  []int  // by NUMA node: sum of eligible
	memoised []bool // by L3 domain: whether its table is filled
	tables   [][]cost
	core     []cost     // scratch: the options of one knapsack step
	row      []cost     // scratch of inOneNUMA
	from     [][]uint16 // by L3 domain of a NUMA node: the choices of the last recorded knapsack
	picks    [][]uint16 // scratch of pickIn
	largest  []int      // scratch of fewestCells
	kinds    []cellKind // scratch of fewestCells
	work     int        // inner steps done, in the unit of the budget
	fits     fits
}

// begin starts a choice for an ask on a node.
func (s *solver) begin(n *Node, a *ask, idleOnly bool, socket int) {
	s.n, s.a, s.idleOnly, s.socket = n, a, idleOnly, socket
	l := n.layout
	s.fits.begin(min(a.cpus, len(l.cells)))
	s.eligible = resize(s.eligible, len(l.cells))
	s.memoised = resize(s.memoised, len(l.cells))
	s.numaCap = resize(s.numaCap, len(l.numas))
	clear(s.memoised)
	for i := range l.numas {
		m := &l.numas[i]
		s.numaCap[i] = 0
		for c := m.cells.lo; c < m.cells.hi; c++ {
			s.eligible[c] = s.eligibleIn(c)
			s.numaCap[i] += s.eligible[c]
		}
	}
}

func resize[T any](v []T, n int) []T {
	if cap(v) < n {
		return make([]T, n)
	}
	return v[:n]
}

// eligibleIn returns the number of CPUs of an L3 domain that the request may take.
func (s *solver) eligibleIn(c int) int {
	l, n, a := s.n.layout, s.n, s.a
	cell := &l.cells[c]
	if s.socket >= 0 && cell.socket != s.socket {
		return 0
	}
	whole := n.cellIsIdle(c)
	if a.isolation == request.IsolateL3 && !whole || a.isolation == request.IsolateNUMA && !n.numaIsIdle(cell.numa) {
		return 0
	}
	if s.idleOnly && l.uniform {
		switch {
		case a.cores == request.EfficientCores:
			return 0
		case a.bind == request.WholeL3:
			return cell.len() * boolInt(whole)
		case a.fullCore || a.isolation == request.IsolateCore:
			return int(n.cellWhole[c]) * l.smt
		}
		return int(n.cellIdle[c])
	}
	count := 0
	for k := cell.cores.lo; k < cell.cores.hi; k++ {
		avail := s.availableIn(k)
		if a.fullCore && avail < l.cores[k].len() {
			continue
		}
		count += avail
	}
	if a.bind == request.WholeL3 && count < cell.len() {
		return 0
	}
	return count
}

// available reports whether the request may use a CPU.
func (s *solver) available(i int) bool {
	n := s.n
	switch {
	case !n.layout.isKind(i, s.a.cores):
		return false
	case n.refs[i] == 0 || s.idleOnly:
		return has(n.idle, i)
	}
	limit := refsMax
	if s.a.share > 0 {
		limit = s.a.share
	}
	if n.limit[i] > 0 {
		limit = min(limit, int(n.limit[i]))
	}
	return has(n.layout.usable, i) && !has(n.exclusive, i) && int(n.refs[i]) < limit
}

// isKind reports whether a CPU belongs to a core of this kind.
func (l *Layout) isKind(i int, kind request.Cores) bool {
	return kind == request.AnyCores || has(l.efficient, i) == (kind == request.EfficientCores)
}

// availableIn returns the number of CPUs of a core that the request may use.
func (s *solver) availableIn(k int) int {
	core := s.n.layout.cores[k]
	count := 0
	for i := core.lo; i < core.hi; i++ {
		count += boolInt(s.available(i))
	}
	if s.a.isolation == request.IsolateCore && !s.coreIsIdle(k) {
		return 0
	}
	return count
}

func (s *solver) coreIsIdle(k int) bool {
	core := s.n.layout.cores[k]
	for i := core.lo; i < core.hi; i++ {
		if !has(s.n.idle, i) {
			return false
		}
	}
	return true
}

// cellCost returns the lowest cost of taking t > 0 CPUs from an L3 domain, or infinite if that is
// impossible.
func (s *solver) cellCost(c, t int) cost {
	if t > s.eligible[c] {
		return infinite
	}
	l := s.n.layout
	if !s.idleOnly || !l.uniform {
		if !s.memoised[c] {
			s.cellTable(c)
		}
		return s.tables[c][t]
	}
	if s.a.bind == request.WholeL3 && t != l.cells[c].len() || s.a.fullCore && t%l.smt != 0 {
		return infinite
	}
	// All cores have one or two threads. Of the eligible CPUs, 2*whole are in idle cores and the
	// others are single.
	var shared, split, doubled int
	whole := int(s.n.cellWhole[c])
	if l.smt == 2 {
		single := s.eligible[c] - 2*whole
		switch {
		case s.a.bind == request.Spread:
			// First one thread of each idle core, then the single threads, and second threads last.
			doubled = max(0, t-whole-single)
			shared = min(max(0, t-whole), single)
		case s.a.bind == request.Threads || s.oddShares():
			// Split no idle core if a single thread can provide the odd CPU; share no more cores
			// than that needs.
			shared = max(0, t-2*whole)
			if shared == 0 && t%2 == 1 {
				if single > 0 {
					shared = 1
				} else {
					split = 1
				}
			}
		default:
			shared = max(0, t-2*whole)
			split = boolInt(shared == 0 && t%2 == 1)
		}
	}
	if s.oddShares() {
		shared = max(0, shared-t%2)
	}
	return s.fixedCost(c, t).plus(cost{lo: order(s.a.bind, shared, split, doubled, 0, 0)})
}

// oddShares reports whether one CPU, in each L3 domain that gives an odd number of them, may share
// its core at no cost; otherwise every odd number would waste half a core. This applies to requests
// that do not care how CPUs are bound, on machines where the counters are sufficient to decide it.
func (s *solver) oddShares() bool { return oddShares(s.n.layout, s.a) }

func oddShares(l *Layout, a *ask) bool {
	return l.uniform && l.smt == 2 && a.share == 1 && a.bind == request.AnyCPU
}

// fixedCost returns the part of a cost that depends only on the number of CPUs that an L3 domain
// gives.
func (s *solver) fixedCost(c, t int) cost {
	l, idle := s.n.layout, int(s.n.cellIdle[c])
	whole := boolInt(s.n.cellIsIdle(c))
	if s.a.burst {
		whole = l.cells[c].len() - idle
	}
	after := max(0, idle-t)
	return cost{1, uint64(whole)<<shiftWholeL3(s.a.bind) | order(s.a.bind, 0, 0, 0, s.fit(c, t), after)}
}

// coreCosts returns the costs of taking 0, 1, 2... CPUs from a core, always those with the fewest
// containers on them.
func (s *solver) coreCosts(k int, out []cost) []cost {
	core := s.n.layout.cores[k]
	out = append(out[:0], cost{})
	avail := s.availableIn(k)
	if avail == 0 {
		return out
	}
	idle := s.coreIsIdle(k)
	bind := s.a.bind
	if s.oddShares() {
		bind = request.Threads // with one shared core free of charge, the order is the same
	}
	refs := 0
	last := -1
	for j := 1; j <= avail; j++ {
		last = s.nextThread(core, last)
		refs += int(s.n.refs[last])
		c := cost{uint64(refs) << shiftRefs, order(bind, boolInt(!idle), boolInt(idle && j < core.len()), j-1, 0, 0)}
		if s.a.fullCore && j < core.len() {
			c = infinite
		}
		out = append(out, c)
	}
	return out
}

// nextThread returns the available CPU of a core that follows last in the order (number of
// containers, CPU number).
func (s *solver) nextThread(core span, last int) int {
	best := -1
	for i := core.lo; i < core.hi; i++ {
		if !s.available(i) || last >= 0 && (s.n.refs[i] < s.n.refs[last] || s.n.refs[i] == s.n.refs[last] && i <= last) {
			continue
		}
		if best < 0 || s.n.refs[i] < s.n.refs[best] {
			best = i
		}
	}
	return best
}

// cellTable fills the table of an L3 domain: the knapsack over its cores.
func (s *solver) cellTable(c int) {
	l := s.n.layout
	for len(s.tables) < len(l.cells) {
		s.tables = append(s.tables, nil)
	}
	most := min(s.a.cpus, s.eligible[c])
	t := resize(s.tables[c], most+1)
	for i := range t {
		t[i] = infinite
	}
	t[0] = cost{}
	cell := l.cells[c]
	for k := cell.cores.lo; k < cell.cores.hi; k++ {
		s.core = s.coreCosts(k, s.core)
		s.addOption(t, s.core, nil)
	}
	for i := 1; i <= most; i++ {
		switch {
		case s.a.bind == request.WholeL3 && i != cell.len():
			t[i] = infinite
		case !t[i].isInfinite():
			t[i] = t[i].plus(s.fixedCost(c, i))
		}
	}
	s.tables[c], s.memoised[c] = t, true
}

// addOption is one knapsack step: t[i] becomes the minimum over j of t[i-j] plus options[j]. from,
// if not nil, records the j.
func (s *solver) addOption(t, options []cost, from []uint16) {
	for i := len(t) - 1; i >= 0; i-- {
		best, take := t[i], 0
		for j := 1; j < len(options) && j <= i; j++ {
			if prev, opt := t[i-j], options[j]; !prev.isInfinite() && !opt.isInfinite() {
				if c := prev.plus(opt); c.less(best) {
					best, take = c, j
				}
			}
		}
		t[i] = best
		if from != nil {
			from[i] = uint16(take)
		}
	}
	s.work += len(t) * len(options)
}

// numaRow fills row with the lowest costs of taking 0..cpus CPUs from a NUMA node: the knapsack
// over its L3 domains. It omits choices that take fewer than least CPUs from a domain, and choices
// with more than some domains of a kind; 0 omits nothing.
func (s *solver) numaRow(i int, row []cost, record bool, least, some int) {
	m := &s.n.layout.numas[i]
	for t := range row {
		row[t] = infinite
	}
	row[0] = cost{}
	s.kinds = s.kinds[:0]
	for c := m.cells.lo; c < m.cells.hi; c++ {
		most := min(s.a.cpus, s.eligible[c])
		left := most < max(least, 1) || some > 0 && s.enough(c, some)
		var from []uint16
		if record {
			from = resize(s.fromRow(c-m.cells.lo), len(row))
			s.from[c-m.cells.lo] = from
			if left {
				clear(from)
			}
		}
		if left {
			continue
		}
		s.core = append(s.core[:0], cost{})
		for t := 1; t <= most; t++ {
			s.core = append(s.core, infinite)
		}
		for t := max(least, 1); t <= most; t++ {
			s.core[t] = s.cellCostKeeping(c, t)
		}
		s.addOption(row, s.core, from)
	}
}

// cellKind contains everything on which the cost of a take depends, if it follows from counters,
// and the number of L3 domains of that kind seen.
type cellKind struct {
	size, eligible  int
	idle, wholeIdle uint16
	seen            int
}

// enough reports whether some L3 domains of the same kind have already been seen, and counts this
// one.
func (s *solver) enough(c, some int) bool {
	kind := cellKind{s.n.layout.cells[c].len(), s.eligible[c], s.n.cellIdle[c], s.n.cellWhole[c], 0}
	for k := range s.kinds {
		seen := s.kinds[k].seen
		if s.kinds[k].seen = 0; s.kinds[k] == kind {
			s.kinds[k].seen = seen + 1
			return seen >= some
		}
		s.kinds[k].seen = seen
	}
	kind.seen = 1
	s.kinds = append(s.kinds, kind)
	return false
}

// fewestCells returns the smallest number of L3 domains of a NUMA node that have the CPUs, and the
// minimum number of CPUs that each domain gives in such a choice.
func (s *solver) fewestCells(i int) (cells, least int) {
	m := &s.n.layout.numas[i]
	s.largest = append(s.largest[:0], s.eligible[m.cells.lo:m.cells.hi]...)
	slices.Sort(s.largest)
	room, last := 0, 0
	for _, e := range slices.Backward(s.largest) {
		if room >= s.a.cpus {
			break
		}
		room += e
		last = e
		cells++
	}
	return cells, max(0, s.a.cpus-(room-last))
}

func (s *solver) fromRow(i int) []uint16 {
	for len(s.from) <= i {
		s.from = append(s.from, nil)
	}
	return s.from[i]
}

// cellCostKeeping is cellCost for callers that are using the scratch row s.core.
func (s *solver) cellCostKeeping(c, t int) cost {
	if (!s.idleOnly || !s.n.layout.uniform) && !s.memoised[c] {
		keep := s.core
		s.core = nil
		s.cellTable(c)
		s.core = keep
	}
	return s.cellCost(c, t)
}

// singleCell returns the best single L3 domain of a NUMA node, or -1.
func (s *solver) singleCell(i int) (int, cost) {
	m := &s.n.layout.numas[i]
	best, bestCost := -1, infinite
	for c := m.cells.lo; c < m.cells.hi; c++ {
		if s.eligible[c] < s.a.cpus {
			continue
		}
		if k := s.cellCost(c, s.a.cpus); k.less(bestCost) {
			best, bestCost = c, k
		}
	}
	return best, bestCost
}

// numaCost returns the cost of a set of NUMA nodes itself.
func (s *solver) numaCost(set subset) cost {
	idle := 0
	for _, i := range set.numas {
		idle += boolInt(s.n.numaIsIdle(i))
	}
	return Cost{NUMANodes: len(set.numas), Distance: set.distance, WholeNUMA: idle}.pack(s.a.bind)
}

// inOneNUMA returns the cost of the best choice within one NUMA node. takes, if not nil, receives
// the choice.
func (s *solver) inOneNUMA(i int, takes *[]take) cost {
	one := cost{uint64(1) << shiftNUMA, uint64(boolInt(s.n.numaIsIdle(i))) << shiftWholeNUMA(s.a.bind)}
	// A single L3 domain is the smallest number of domains. It wins unless other CPUs have fewer
	// containers on them.
	if s.idleOnly || s.a.span == request.SingleL3 {
		if c, k := s.singleCell(i); c >= 0 {
			if takes != nil {
				*takes = append((*takes)[:0], take{c, s.a.cpus})
			}
			return k.plus(one)
		}
		if s.a.span == request.SingleL3 {
			return infinite
		}
	}
	s.row = resize(s.row, s.a.cpus+1)
	total := infinite
	if s.idleOnly && s.n.layout.uniform {
		// The smallest number of L3 domains wins over all that follows in the cost, so try only
		// choices that may have that number.
		cells, least := s.fewestCells(i)
		s.numaRow(i, s.row, takes != nil, least, cells)
		if total = s.row[s.a.cpus]; total.hi != uint64(cells) {
			total = infinite // the smallest number is impossible under the conditions of the ask
		}
	}
	if total.isInfinite() {
		s.numaRow(i, s.row, takes != nil, 0, 0)
		if total = s.row[s.a.cpus]; total.isInfinite() {
			return infinite
		}
	}
	if takes != nil {
		*takes = s.backtrack(i, s.a.cpus, (*takes)[:0])
	}
	return total.plus(one)
}

// backtrack appends the takes that gave row[t] in the last recorded numaRow.
func (s *solver) backtrack(i, t int, takes []take) []take {
	m := s.n.layout.numas[i]
	for c := m.cells.hi - 1; c >= m.cells.lo; c-- {
		if j := int(s.from[c-m.cells.lo][t]); j > 0 {
			takes = append(takes, take{c, j})
			t -= j
		}
	}
	return takes
}

func (s *solver) memoryFits(numas []int) bool {
	if !s.a.local {
		return true
	}
	var free int64
	for _, i := range numas {
		free += max(0, s.n.memoryFree[i])
	}
	return free >= s.a.memory
}

// solve finds the best choice on a node. budget bounds the work on requests that need several NUMA
// nodes, in inner steps; the choice is exact unless the budget runs out.
func (s *solver) solve(n *Node, a *ask, takes *[]take, budget int) (cost, bool) {
	best := infinite
	limit := s.work + budget
	sockets := []int{-1}
	if a.span == request.SingleSocket {
		sockets = sockets[:0]
		for i := range n.layout.topo.Sockets {
			sockets = append(sockets, i)
		}
	}
	var mine []take
	for _, socket := range sockets {
		var into *[]take
		if takes != nil {
			into = &mine
		}
		if c := s.solveIn(n, a, socket, into, limit); c.less(best) {
			best = c
			if takes != nil {
				*takes = append((*takes)[:0], mine...)
			}
		}
	}
	if best.isInfinite() {
		return infinite, false
	}
	best.hi |= uint64(a.violated) << shiftViolations
	return best, true
}

func (s *solver) solveIn(n *Node, a *ask, socket int, takes *[]take, limit int) cost {
	oneNUMA := n.layout.inOneNUMANode(a)
	s.begin(n, a, true, socket)
	if c := s.bestNUMA(takes); !c.isInfinite() || a.share == 1 && oneNUMA {
		return c
	}
	if a.share != 1 {
		s.begin(n, a, false, socket)
		if c := s.bestNUMA(takes); !c.isInfinite() {
			return c
		}
	}
	if oneNUMA || a.cpus%s.grain() != 0 {
		return infinite
	}
	c := s.severalNUMA(takes, limit)
	if a.span == request.FewestNUMA && !c.isInfinite() && c.unpack(a.bind).NUMANodes > n.layout.fewestNUMA(a) {
		return infinite // the choice has the fewest NUMA nodes that are free enough
	}
	return c
}

// inOneNUMANode reports whether the CPUs must be in one NUMA node.
func (l *Layout) inOneNUMANode(a *ask) bool {
	return a.span == request.SingleL3 || a.span == request.SingleNUMA || a.span == request.FewestNUMA && l.fewestNUMA(a) == 1
}

// fewestNUMA returns the number of NUMA nodes that the CPUs of an ask need if nothing else has any.
func (l *Layout) fewestNUMA(a *ask) int {
	sizes := make([]int, len(l.numas))
	for i, m := range l.numas {
		for k := m.lo; k < m.hi; k++ {
			sizes[i] += boolInt(has(l.usable, k) && l.isKind(k, a.cores))
		}
	}
	return fewestOf(sizes, a.cpus)
}

// grain returns a divisor of every number of CPUs that can be taken: the greatest common divisor of
// the sizes of the eligible cores or L3 domains if these are taken whole. It avoids a search
// through all sets of NUMA nodes for, say, 17 CPUs in whole cores of two threads.
func (s *solver) grain() int {
	l, grain := s.n.layout, 0
	for c := range l.cells {
		cell := &l.cells[c]
		switch {
		case s.eligible[c] == 0 || grain == 1:
		case s.a.bind == request.WholeL3:
			grain = gcd(cell.len(), grain)
		case !s.a.fullCore:
			return 1
		case l.uniform:
			return l.smt
		default:
			for k := cell.cores.lo; k < cell.cores.hi; k++ {
				if s.availableIn(k) == l.cores[k].len() {
					grain = gcd(l.cores[k].len(), grain)
				}
			}
		}
	}
	return max(grain, 1)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// bestNUMA returns the best choice within one NUMA node.
func (s *solver) bestNUMA(takes *[]take) cost {
	best, at := infinite, -1
	for i := range s.n.layout.numas {
		if s.numaCap[i] < s.a.cpus || s.a.local && !s.memoryFits([]int{i}) {
			continue
		}
		if c := s.inOneNUMA(i, nil); c.less(best) {
			best, at = c, i
		}
	}
	if at >= 0 && takes != nil {
		s.inOneNUMA(at, takes)
	}
	return best
}

// severalNUMA tries sets of NUMA nodes, fewest first and nearest first, and stops at the first size
// and distance for which a choice exists.
func (s *solver) severalNUMA(takes *[]take, limit int) cost {
	l := s.n.layout
	if l.tree != nil {
		return s.searchNUMA(takes)
	}
	rows := make([][]cost, len(l.numas))
	best := infinite
	var bestSet subset
	for size := 2; size < len(l.subsets) && size <= s.a.cpus; size++ {
		for _, set := range l.subsets[size] {
			if !best.isInfinite() &&
				(uint64(min(set.distance, 1<<bitsDistance-1)) > best.hi>>shiftDistance&(1<<bitsDistance-1) || s.work > limit) {
				break
			}
			if !s.roomIn(set) || !s.memoryFits(set.numas) {
				continue
			}
			for _, i := range set.numas {
				if rows[i] == nil {
					rows[i] = make([]cost, s.a.cpus+1)
					s.numaRow(i, rows[i], false, 0, 0)
				}
			}
			c := s.combine(set, rows, nil)
			if c.isInfinite() {
				continue
			}
			if c = c.plus(s.numaCost(set)); c.less(best) {
				best, bestSet = c, set
			}
		}
		if !best.isInfinite() {
			break
		}
	}
	if takes != nil && !best.isInfinite() {
		split := make([]int, len(bestSet.numas))
		s.combine(bestSet, rows, split)
		*takes = (*takes)[:0]
		for k, i := range bestSet.numas {
			row := make([]cost, s.a.cpus+1)
			s.numaRow(i, row, true, 0, 0)
			*takes = s.backtrack(i, split[k], *takes)
		}
	}
	return best
}

func (s *solver) roomIn(set subset) bool {
	room := 0
	for _, i := range set.numas {
		if s.numaCap[i] == 0 {
			return false
		}
		room += s.numaCap[i]
	}
	return room >= s.a.cpus
}

// combine is the knapsack over NUMA nodes, each of which gives at least one CPU. split, if not nil,
// receives the number of CPUs of each node.
func (s *solver) combine(set subset, rows [][]cost, split []int) cost {
	total := make([]cost, s.a.cpus+1)
	next := make([]cost, s.a.cpus+1)
	var from [][]uint16
	for t := range total {
		total[t] = infinite
	}
	total[0] = cost{}
	for _, i := range set.numas {
		choice := make([]uint16, s.a.cpus+1)
		for t := range next {
			next[t] = infinite
			for j := 1; j <= t && j <= s.numaCap[i]; j++ {
				if a, b := total[t-j], rows[i][j]; !a.isInfinite() && !b.isInfinite() {
					if c := a.plus(b); c.less(next[t]) {
						next[t], choice[t] = c, uint16(j)
					}
				}
			}
		}
		s.work += len(next) * min(len(next), s.numaCap[i])
		total, next = next, total
		from = append(from, choice)
	}
	if split != nil {
		t := s.a.cpus
		for k := len(from) - 1; k >= 0; k-- {
			split[k] = int(from[k][t])
			t -= split[k]
		}
	}
	return total[s.a.cpus]
}

// pick turns takes into CPUs. It must follow a solve for the same node and ask.
func (s *solver) pick(takes []take) cpuset.Set {
	var b cpuset.Builder
	for _, t := range takes {
		s.pickIn(t, &b)
	}
	return b.Set()
}

// pickIn chooses CPUs within one L3 domain: it repeats the knapsack over the domain's cores and
// records the choices.
func (s *solver) pickIn(t take, out *cpuset.Builder) {
	l := s.n.layout
	cell := l.cells[t.cell]
	if t.cpus == s.eligible[t.cell] { // all eligible CPUs are taken
		for k := cell.cores.lo; k < cell.cores.hi; k++ {
			core := l.cores[k]
			if avail := s.availableIn(k); avail == 0 || s.a.fullCore && avail < core.len() {
				continue
			}
			for i := core.lo; i < core.hi; i++ {
				if s.available(i) {
					out.Add(l.cpus[i])
				}
			}
		}
		return
	}
	s.row = resize(s.row, t.cpus+1)
	for i := range s.row {
		s.row[i] = infinite
	}
	s.row[0] = cost{}
	// Go from the first core upwards: among equal choices the first found stays, so low numbers
	// win.
	for k := cell.cores.lo; k < cell.cores.hi; k++ {
		step := k - cell.cores.lo
		if step == len(s.picks) {
			s.picks = append(s.picks, nil)
		}
		s.picks[step] = resize(s.picks[step], t.cpus+1)
		s.core = s.coreCosts(k, s.core)
		s.addOption(s.row, s.core, s.picks[step])
	}
	left := t.cpus
	for step := cell.cores.len() - 1; step >= 0; step-- {
		core := l.cores[cell.cores.lo+step]
		count := int(s.picks[step][left])
		last := -1
		for range count {
			last = s.nextThread(core, last)
			out.Add(l.cpus[last])
		}
		left -= count
	}
}
