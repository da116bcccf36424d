package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Mix is a distribution of pod sizes: each arrival draws one of Sizes with equal probability.
type Mix struct {
	Name  string `json:"name"`
	Sizes []int  `json:"sizes"` // CPUs
}

// Mixes returns the request mixes of different kinds of clusters.
func Mixes() []Mix {
	return []Mix{
		{"study", []int{2, 4, 4, 4, 8, 8, 16}},
		{"web", []int{1, 2, 2, 4, 4, 8}},
		{"batch", []int{4, 8, 16, 32}},
		{"odd", []int{1, 3, 5, 6, 7, 12}},
		{"large", []int{8, 16, 24, 32, 48, 64}},
		{"small", []int{1, 1, 2, 2, 3, 4}},
	}
}

// MixByName returns the mix of Mixes with this name.
func MixByName(name string) (Mix, error) {
	var names []string
	for _, m := range Mixes() {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Mix{}, fmt.Errorf("no request mix %q; there are: %v", name, names)
}

// Bounds of a mix: the largest size, and the number of sizes after weights are expanded.
const (
	sizeMax  = 4096
	sizesMax = 10000
)

// ParseMix parses a distribution of sizes such as "3:2,8:1" (pods of 3 CPUs are twice as frequent as
// pods of 8) or "6-14" (each size from 6 to 14). The text is the name of the mix.
func ParseMix(text string) (Mix, error) {
	m := Mix{Name: text}
	for part := range strings.SplitSeq(text, ",") {
		sizes, weight, weighted := strings.Cut(part, ":")
		from, to, isRange := strings.Cut(sizes, "-")
		if !isRange {
			to = from
		}
		if !weighted {
			weight = "1"
		}
		lo, errLo := strconv.Atoi(from)
		hi, errHi := strconv.Atoi(to)
		times, errTimes := strconv.Atoi(weight)
		switch {
		case errLo != nil || errHi != nil || errTimes != nil:
			return m, fmt.Errorf("%q is not SIZE, SIZE:WEIGHT or FROM-TO:WEIGHT", part)
		case lo < 1 || hi < lo || hi > sizeMax:
			return m, fmt.Errorf("%q: sizes are from 1 to %d CPUs", part, sizeMax)
		case times < 1 || times > sizesMax || len(m.Sizes)+times*(hi-lo+1) > sizesMax:
			return m, fmt.Errorf("%q: weights are at least 1, and their sum over all sizes at most %d", part, sizesMax)
		}
		for range times {
			for size := lo; size <= hi; size++ {
				m.Sizes = append(m.Sizes, size)
			}
		}
	}
	return m, nil
}

// Group is a number of nodes of one machine.
type Group struct {
	Topology *cputopology.Topology
	Nodes    int
}

// Config configures one simulation.
type Config struct {
	Name    string  // of the machines
	Cluster []Group // the nodes, in the order in which policies see them
	Mix     Mix
	Seed    uint64
	// Load is the share of all CPUs in use at which arrivals are kept, in (0, 1].
	Load float64
	// Turnover is the number of pods placed under load, as a multiple of the number that filled the
	// cluster.
	Turnover float64
	// Now is the clock for decision latencies.
	Now func() time.Time
}

// Result holds the figures of one policy in one simulation.
type Result struct {
	Policy  string `json:"policy"`
	Machine string `json:"machine"`
	Nodes   int    `json:"nodes"`
	Mix     string `json:"mix"`
	Seed    uint64 `json:"seed"`
	// Placed and Unplaced are numbers of arrivals. An arrival is unplaced if no node has enough
	// idle CPUs.
	Placed   int `json:"placed"`
	Unplaced int `json:"unplaced"`
	// Shares of placements, in percent.
	L3SplitPercent            float64 `json:"l3SplitPercent"`
	L3SplitAvoidablePercent   float64 `json:"l3SplitAvoidablePercent"`
	NUMASplitPercent          float64 `json:"numaSplitPercent"`
	NUMASplitAvoidablePercent float64 `json:"numaSplitAvoidablePercent"`
	// FreeL3 is the mean, over arrivals under load, of the number of idle L3 domains, and
	// FreeL3Possible that of a bound of it: no packing of the running pods over the whole cluster
	// leaves more domains idle without splitting a pod more than it is (see demand).
	// FreeL3Percent is the first in percent of the second, and FreeL3IdlePercent in percent of the
	// idle CPUs divided by the size of an L3 domain. FreeL3WithinPercent is, in percent of
	// FreeL3Possible, the bound for packings of each node's pods on their node: the limit of what
	// moves within nodes can achieve for the policy's choice of nodes. Nodes whose L3 domains or
	// NUMA nodes differ in size do not count.
	FreeL3              float64 `json:"freeL3"`
	FreeL3Possible      float64 `json:"freeL3Possible"`
	FreeL3Percent       float64 `json:"freeL3Percent"`
	FreeL3IdlePercent   float64 `json:"freeL3IdlePercent"`
	FreeL3WithinPercent float64 `json:"freeL3WithinPercent"`
	// Moves is the number of pods moved within their nodes, by policies that do so; MovedCPUs is
	// the number of CPUs moved.
	Moves     int `json:"moves"`
	MovedCPUs int `json:"movedCPUs"`
	// Decision latencies.
	LatencyP50Micros float64 `json:"latencyP50Micros"`
	LatencyP99Micros float64 `json:"latencyP99Micros"`
}

// Policy chooses a node and CPUs for a pod. Place changes the node, and returns false if no node
// has the CPUs.
type Policy interface {
	Name() string
	Place(nodes []*allocate.Node, key string, cpus int) (node int, ok bool)
}

// maintainer is a policy that also moves pods within their nodes. Maintain is called for each node
// that pods have left or entered, and returns the numbers of pods and CPUs that it moved.
type maintainer interface {
	Maintain(n *allocate.Node) (pods, cpus int)
}

// pod is a placed pod.
type pod struct {
	key        string
	node, cpus int
}

type simulation struct {
	cfg      Config
	policy   Policy
	rng      *rand.Rand
	nodes    []*allocate.Node
	empty    []*allocate.Node // one node of each machine
	pods     []pod
	cpus     int // total of the cluster
	idle     int
	freeL3   int // number over all nodes with a demand
	nodeFree []int
	took     []time.Duration
	arrivals int
	pools    map[pool]*demand // of all nodes of the same kind, as one machine
	each     []*demand        // by node; nil if the L3 domains of a node differ
	demanded []int            // by node: number of changes when its demand was read
	result   Result
	splits   struct{ l3, l3Avoidable, numa, numaAvoidable int }
	seen     struct{ free, possible, within, idle, times float64 } // sums over arrivals under load
	changes  []int                                                 // number of changes of each node, to validate entries of fewest
	fewest   map[fewestKey][]fewestL3
}

// fewestL3 caches the smallest number of L3 domains in which a node had idle CPUs for a pod.
type fewestL3 struct {
	changes, l3 int
	ok          bool
}

type fewestKey struct{ cpus, numas int }

// Run simulates one policy.
func Run(cfg Config, policy Policy) (Result, error) {
	if cfg.Load <= 0 || cfg.Load > 1 || cfg.Turnover < 0 || len(cfg.Mix.Sizes) == 0 || slices.Min(cfg.Mix.Sizes) < 1 {
		return Result{}, fmt.Errorf(
			"simulate: want a load in (0, 1], a turnover of at least 0 and pod sizes above 0")
	}
	nodes, err := emptyNodes(cfg.Cluster)
	if err != nil {
		return Result{}, err
	}
	s, err := newSimulation(nodes, cfg.Seed)
	if err != nil {
		return Result{}, err
	}
	s.cfg, s.policy = cfg, policy
	s.result = Result{Policy: policy.Name(), Machine: cfg.Name, Nodes: len(nodes), Mix: cfg.Mix.Name, Seed: cfg.Seed}
	s.fill()
	s.churn()
	return s.finish(), nil
}

// emptyNodes returns the nodes of a cluster.
func emptyNodes(cluster []Group) ([]*allocate.Node, error) {
	var nodes []*allocate.Node
	for _, g := range cluster {
		layout, err := allocate.NewLayout(g.Topology, cpuset.Set{})
		if err != nil {
			return nil, err
		}
		for range g.Nodes {
			nodes = append(nodes, allocate.NewNode(fmt.Sprintf("node-%d", len(nodes)), layout))
		}
	}
	return nodes, nil
}

// newSimulation starts a simulation on empty nodes.
func newSimulation(nodes []*allocate.Node, seed uint64) (*simulation, error) {
	if len(nodes) == 0 {
		return nil, fmt.Errorf("simulate: no nodes")
	}
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 0)), nodes: nodes, fewest: map[fewestKey][]fewestL3{},
		pools: map[pool]*demand{}, changes: make([]int, len(nodes))}
	seen := map[*allocate.Layout]bool{}
	for _, n := range nodes {
		l := n.Layout()
		s.nodeFree = append(s.nodeFree, n.IdleL3())
		s.cpus += n.IdleCPUs()
		if !seen[l] {
			seen[l] = true
			s.empty = append(s.empty, allocate.NewNode("", l))
		}
		s.each = append(s.each, s.addPool(l))
		s.demanded = append(s.demanded, 0)
		if s.each[len(s.each)-1] != nil {
			s.freeL3 += n.IdleL3()
		}
	}
	s.idle = s.cpus
	return s, nil
}

// addPool adds a node's L3 domains to the pool of its kind, and returns the demand of the node
// alone. It returns nil for a machine whose domains or NUMA nodes differ in size, which no bound is
// known for.
func (s *simulation) addPool(l *allocate.Layout) *demand {
	domains := l.L3Domains()
	size := domains[0].Len()
	if slices.ContainsFunc(domains, func(d cpuset.Set) bool { return d.Len() != size }) {
		return nil
	}
	perNUMA, here := 0, map[int]int{}
	for _, numa := range l.NUMAOfL3() {
		here[numa]++
		perNUMA = max(perNUMA, here[numa])
	}
	for _, n := range here {
		if n != perNUMA {
			return nil
		}
	}
	kind := pool{size, perNUMA}
	if s.pools[kind] == nil {
		s.pools[kind] = newDemand(kind)
	}
	own := newDemand(kind)
	own.exact = true
	own.addNUMA(len(here))
	s.pools[kind].addNUMA(len(here))
	return own
}

// fill lets pods arrive until one exceeds the load.
func (s *simulation) fill() {
	for {
		size := s.draw()
		if !s.fits(size) {
			return
		}
		s.arrive(size)
	}
}

func (s *simulation) churn() {
	for range int(s.cfg.Turnover * float64(s.arrivals)) {
		size := s.draw()
		for !s.fits(size) && len(s.pods) > 0 {
			s.leave(s.rng.IntN(len(s.pods)))
		}
		s.arrive(size)
		s.seeFree()
	}
}

// seeFree records the present number of free L3 domains.
func (s *simulation) seeFree() {
	all, within := s.possible()
	s.seen.free += float64(s.freeL3)
	s.seen.possible += float64(all)
	s.seen.within += float64(within)
	for i, d := range s.each {
		if d != nil {
			s.seen.idle += float64(s.nodes[i].IdleCPUs()) / float64(d.l3)
		}
	}
	s.seen.times++
}

// possible returns how many L3 domains could be idle at most if pods were repacked and none were split
// over more domains than now: all if pods may move to other nodes of the same kind, within if every
// pod stays on its node.
func (s *simulation) possible() (all, within int) {
	for i, d := range s.each {
		if d == nil {
			continue
		}
		if s.demanded[i] != s.changes[i] {
			s.demanded[i] = s.changes[i]
			s.readDemand(s.nodes[i], d)
		}
		within += d.mostFree()
	}
	for _, d := range s.pools {
		all += d.mostFree()
	}
	return all, within
}

// readDemand brings the demand of a node, and of its pool, up to date.
func (s *simulation) readDemand(n *allocate.Node, d *demand) {
	change := map[kind]int{}
	for k, pods := range d.pods {
		change[k] = -pods
	}
	for _, a := range n.Pods() {
		cpus := a.CPUs()
		l3, numas := n.Spans(cpus)
		change[d.kindOf(cpus.Len(), l3, numas)]++
	}
	for k, pods := range change {
		if pods != 0 {
			d.add(k, pods)
			s.pools[d.pool].add(k, pods)
		}
	}
}

func (s *simulation) draw() int { return s.cfg.Mix.Sizes[s.rng.IntN(len(s.cfg.Mix.Sizes))] }

func (s *simulation) fits(size int) bool {
	return float64(s.cpus-s.idle+size) <= s.cfg.Load*float64(s.cpus)
}

func (s *simulation) leave(i int) {
	p := s.pods[i]
	s.nodes[p.node].Release(p.key)
	s.recount(p.node)
	s.idle += p.cpus
	s.maintain(p.node)
	s.pods[i] = s.pods[len(s.pods)-1]
	s.pods = s.pods[:len(s.pods)-1]
}

func (s *simulation) recount(node int) {
	s.changes[node]++
	free := s.nodes[node].IdleL3()
	if s.each[node] != nil {
		s.freeL3 += free - s.nodeFree[node]
	}
	s.nodeFree[node] = free
}

func (s *simulation) arrive(size int) {
	s.arrivals++
	key := fmt.Sprint(s.arrivals)
	start := s.cfg.Now()
	node, ok := s.policy.Place(s.nodes, key, size)
	s.took = append(s.took, s.cfg.Now().Sub(start))
	if !ok {
		s.result.Unplaced++
		return
	}
	s.result.Placed++
	s.idle -= size
	s.pods = append(s.pods, pod{key, node, size})
	s.recount(node)
	s.judge(node, key, size)
	s.maintain(node)
}

func (s *simulation) maintain(node int) {
	if m, ok := s.policy.(maintainer); ok {
		pods, cpus := m.Maintain(s.nodes[node])
		s.result.Moves += pods
		s.result.MovedCPUs += cpus
		s.recount(node)
	}
}

// judge counts the placement's splits. To find out what was possible before the placement, it
// removes the pod temporarily.
func (s *simulation) judge(node int, key string, size int) {
	n := s.nodes[node]
	held := n.Pod(key)
	l3, numa := n.Spans(held.CPUs())
	leastL3, leastNUMA := l3, numa // on an empty machine
	for _, e := range s.empty {
		if u, ok := e.FewestNUMA(size); ok {
			leastNUMA = min(leastNUMA, u)
			if l, ok := e.FewestL3(size, u); ok {
				leastL3 = min(leastL3, l)
			}
		}
	}
	if l3 <= leastL3 && numa <= leastNUMA {
		return
	}
	n.Release(key)
	s.changes[node]++
	betterL3, betterNUMA := false, false
	for i, o := range s.nodes {
		if better, ok := s.fewestL3(i, size, numa); ok && better < l3 {
			betterL3 = true
		}
		if better, ok := o.FewestNUMA(size); ok && better < numa {
			betterNUMA = true
		}
		if betterL3 && (betterNUMA || numa == leastNUMA) {
			break
		}
	}
	if err := n.Restore(held); err != nil {
		panic(err) // the CPUs were free a moment ago
	}
	s.changes[node]++
	if l3 > leastL3 {
		s.splits.l3++
		if betterL3 {
			s.splits.l3Avoidable++
		}
	}
	if numa > leastNUMA {
		s.splits.numa++
		if betterNUMA {
			s.splits.numaAvoidable++
		}
	}
}

// fewestL3 is Node.FewestL3, cached until the node changes.
func (s *simulation) fewestL3(node, size, numas int) (int, bool) {
	key := fewestKey{size, numas}
	known := s.fewest[key]
	if known == nil {
		known = make([]fewestL3, len(s.nodes))
		for i := range known {
			known[i].changes = -1
		}
		s.fewest[key] = known
	}
	k := &known[node]
	if k.changes != s.changes[node] {
		k.changes = s.changes[node]
		k.l3, k.ok = s.nodes[node].FewestL3(size, numas)
	}
	return k.l3, k.ok
}

func (s *simulation) finish() Result {
	r := &s.result
	percent := func(count int) float64 { return 100 * float64(count) / float64(max(r.Placed, 1)) }
	r.L3SplitPercent, r.L3SplitAvoidablePercent = percent(s.splits.l3), percent(s.splits.l3Avoidable)
	r.NUMASplitPercent, r.NUMASplitAvoidablePercent = percent(s.splits.numa), percent(s.splits.numaAvoidable)
	r.FreeL3Percent, r.FreeL3IdlePercent, r.FreeL3WithinPercent = 100, 100, 100
	share := func(part, whole float64, percent *float64) {
		if whole > 0 {
			*percent = 100 * part / whole
		}
	}
	share(s.seen.free, s.seen.possible, &r.FreeL3Percent)
	share(s.seen.within, s.seen.possible, &r.FreeL3WithinPercent)
	share(s.seen.free, s.seen.idle, &r.FreeL3IdlePercent)
	times := max(s.seen.times, 1)
	r.FreeL3, r.FreeL3Possible = s.seen.free/times, s.seen.possible/times
	slices.Sort(s.took)
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	if n := len(s.took); n > 0 {
		r.LatencyP50Micros, r.LatencyP99Micros = micros(s.took[n/2]), micros(s.took[n*99/100])
	}
	return *r
}
