package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
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

// Config configures one simulation.
type Config struct {
	Machine machines.Machine
	Nodes   int
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
	// FreeL3Percent is the mean, over arrivals under load, of the number of idle L3 domains, in
	// percent of the maximum that could be idle if all pods were repacked over the whole cluster,
	// with none split more than necessary (see possibleL3). FreeL3IdlePercent is the same in
	// percent of the idle CPUs divided by the size of an L3 domain. FreeL3WithinPercent is the same
	// as FreeL3Percent for the number that could be idle if the pods of each node were repacked
	// within their node: the limit of what moves within nodes can achieve for the policy's choice
	// of nodes. FreeL3 and FreeL3Possible are numbers of domains at the end.
	FreeL3Percent       float64 `json:"freeL3Percent"`
	FreeL3IdlePercent   float64 `json:"freeL3IdlePercent"`
	FreeL3WithinPercent float64 `json:"freeL3WithinPercent"`
	FreeL3              int     `json:"freeL3"`
	FreeL3Possible      int     `json:"freeL3Possible"`
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
	cfg                  Config
	policy               Policy
	rng                  *rand.Rand
	nodes                []*allocate.Node
	empty                []*allocate.Node // one node of each machine
	pods                 []pod
	cpus                 int // total of the cluster
	idle                 int
	l3Size               int // in CPUs; -1 if domains differ
	freeL3               int // number over all nodes
	nodeFree             []int
	took                 []time.Duration
	arrivals             int
	all                  demand   // demand of all pods, over all nodes as one pool
	each                 []demand // by node
	eachFree             int      // sum over the nodes of the domains that each could keep free
	result               Result
	splits               struct{ l3, l3Avoidable, numa, numaAvoidable int }
	freeSum, freeIdleSum float64
	freeWithinSum        float64
	freeSeen             int
	changes              []int // number of changes of each node, to validate entries of fewest
	fewest               map[fewestKey][]fewestL3
}

// fewestL3 caches the smallest number of L3 domains in which a node had idle CPUs for a pod.
type fewestL3 struct {
	changes, l3 int
	ok          bool
}

type fewestKey struct{ cpus, numas int }

// Run simulates one policy.
func Run(cfg Config, policy Policy) (Result, error) {
	topo, err := cfg.Machine.Topology()
	if err != nil {
		return Result{}, err
	}
	if cfg.Nodes < 1 || cfg.Load <= 0 || cfg.Load > 1 || cfg.Turnover < 0 || len(cfg.Mix.Sizes) == 0 ||
		slices.Min(cfg.Mix.Sizes) < 1 {
		return Result{}, fmt.Errorf(
			"simulate: want at least one node, a load in (0, 1], a turnover of at least 0 and pod sizes above 0")
	}
	layout, err := allocate.NewLayout(topo, cpuset.Set{})
	if err != nil {
		return Result{}, err
	}
	s := &simulation{cfg: cfg, policy: policy, rng: rand.New(rand.NewPCG(cfg.Seed, 0)), fewest: map[fewestKey][]fewestL3{}}
	for i := range cfg.Nodes {
		s.addNode(allocate.NewNode(fmt.Sprintf("node-%d", i), layout))
	}
	s.empty = []*allocate.Node{allocate.NewNode("", layout)}
	s.idle = s.cpus
	s.l3Size = s.cpus / max(s.freeL3, 1)
	s.measure()
	s.result = Result{Policy: policy.Name(), Machine: cfg.Machine.Name, Nodes: cfg.Nodes, Mix: cfg.Mix.Name,
		Seed: cfg.Seed}
	s.fill()
	s.churn()
	return s.finish(), nil
}

func (s *simulation) addNode(n *allocate.Node) {
	s.nodes = append(s.nodes, n)
	s.nodeFree = append(s.nodeFree, n.IdleL3())
	s.changes = append(s.changes, 0)
	s.freeL3 += n.IdleL3()
	s.cpus += n.IdleCPUs()
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
	if s.l3Size < 1 {
		return
	}
	if possible, idle := s.possibleL3(), s.idle/s.l3Size; possible > 0 && idle > 0 {
		s.freeSum += float64(s.freeL3) / float64(possible)
		s.freeWithinSum += float64(s.eachFree) / float64(possible)
		s.freeIdleSum += float64(s.freeL3) / float64(idle)
		s.freeSeen++
	}
}

// demand is the number of L3 domains that pods need if they are repacked, each over as few domains
// as its size needs.
//
// A pod that needs k domains may be assumed to fill k-1 of them: in any other position, the pods
// that share these domains with it have room together beside its rest, because they take no more
// than what the pod leaves of the k domains. So only the rests, each smaller than a domain, need to
// be packed, and a lower bound of the domains for the rests gives a bound for all pods.
type demand struct {
	domains int   // domains available
	wholes  int   // domains that pods fill entirely
	rests   []int // number of pods, by the CPUs that they need beyond whole domains
	free    int   // maximum number of domains that could be idle
}

func newDemand(domains, l3Size int) demand {
	return demand{domains: domains, rests: make([]int, l3Size), free: domains}
}

// add adds (1) or removes (-1) a pod.
func (d *demand) add(size, sign int) {
	d.wholes += sign * (size / len(d.rests))
	d.rests[size%len(d.rests)] += sign
	d.free = d.domains - d.wholes - allocate.L3Needed(d.rests)
}

// measure starts counting possible idle domains, if L3 domains have a common size.
func (s *simulation) measure() {
	if s.l3Size < 1 {
		return
	}
	s.all = newDemand(s.cpus/s.l3Size, s.l3Size)
	for _, n := range s.nodes {
		s.each = append(s.each, newDemand(len(n.Layout().L3Domains()), s.l3Size))
		s.eachFree += len(n.Layout().L3Domains())
	}
}

// possibleL3 returns the maximum number of L3 domains that could be idle if all pods were repacked
// over the whole cluster. No policy that does not split pods can do better, and possibly none can
// reach it, because it treats all NUMA nodes and nodes as one pool.
func (s *simulation) possibleL3() int { return s.all.free }

// count adds (1) or removes (-1) a pod of a node from the counts of possible idle domains.
func (s *simulation) count(node, size, sign int) {
	s.idle -= sign * size
	if s.l3Size < 1 {
		return
	}
	s.all.add(size, sign)
	s.eachFree -= s.each[node].free
	s.each[node].add(size, sign)
	s.eachFree += s.each[node].free
}

func (s *simulation) draw() int { return s.cfg.Mix.Sizes[s.rng.IntN(len(s.cfg.Mix.Sizes))] }

func (s *simulation) fits(size int) bool {
	return float64(s.cpus-s.idle+size) <= s.cfg.Load*float64(s.cpus)
}

func (s *simulation) leave(i int) {
	p := s.pods[i]
	s.nodes[p.node].Release(p.key)
	s.recount(p.node)
	s.count(p.node, p.cpus, -1)
	s.maintain(p.node)
	s.pods[i] = s.pods[len(s.pods)-1]
	s.pods = s.pods[:len(s.pods)-1]
}

func (s *simulation) recount(node int) {
	s.changes[node]++
	free := s.nodes[node].IdleL3()
	s.freeL3 += free - s.nodeFree[node]
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
	s.count(node, size, +1)
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
	if r.FreeL3 = s.freeL3; s.l3Size > 0 {
		r.FreeL3Possible = s.possibleL3()
	}
	r.FreeL3Percent, r.FreeL3IdlePercent, r.FreeL3WithinPercent = 100, 100, 100
	if seen := float64(s.freeSeen); seen > 0 {
		r.FreeL3Percent, r.FreeL3IdlePercent, r.FreeL3WithinPercent = 100*s.freeSum/seen, 100*s.freeIdleSum/seen,
			100*s.freeWithinSum/seen
	}
	slices.Sort(s.took)
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	if n := len(s.took); n > 0 {
		r.LatencyP50Micros, r.LatencyP99Micros = micros(s.took[n/2]), micros(s.took[n*99/100])
	}
	return *r
}
