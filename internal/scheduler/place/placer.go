package place

import (
	"cmp"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/scheduler/network"
)

// Strategy says which nodes are preferred, by their free resources.
type Strategy int

// The strategies.
const (
	LeastAllocated Strategy = iota // spread over the emptiest nodes
	MostAllocated                  // binpack: fill nodes before using the next
)

// Weights multiply the scores of a node, each 0..100, before they are added up.
type Weights struct {
	Resources    int64 // the strategy's score
	Balanced     int64 // evenness of a node's cpu and memory use
	NodeAffinity int64 // preferred node affinity
	Taints       int64 // untolerated PreferNoSchedule taints
}

// DefaultWeights returns the kube-scheduler's weights.
func DefaultWeights() Weights { return Weights{Resources: 1, Balanced: 1, NodeAffinity: 2, Taints: 3} }

// ResourceWeight is the weight of a resource in a strategy's score.
type ResourceWeight struct {
	Name   corev1.ResourceName
	Weight int64
	// Opposite means that the resource is scored by the other strategy than Options.Strategy.
	Opposite bool
}

// Options configure placement. The zero value is the kube-scheduler's default profile.
type Options struct {
	Strategy Strategy
	// Weights of the scores, 0..1000 each. The zero value means DefaultWeights.
	Weights Weights
	// Resources are the resources that the strategy scores. Empty means cpu and memory, with weight
	// 1 each.
	Resources []ResourceWeight
	// Rare filters and scores for the classes that need filters outside the fast path. If it is
	// nil, pods of these classes fit nowhere.
	Rare RareFilter
	// Pin chooses CPUs for the classes that ask for CPUs. If it is nil, pods of these classes fit
	// nowhere.
	Pin Pinner
	// Network is the tree of domains for gangs with Near. Nil means that there are no domains.
	Network *network.Tree
}

var noNetwork = &network.Tree{}

func (o *Options) network() *network.Tree {
	if o.Network == nil {
		return noNetwork
	}
	return o.Network
}

// RareFilter filters and scores nodes one pod at a time, by criteria that the fast path does not
// know: inter-pod affinity, topology spread, volumes. It takes part in the transaction: every pod
// placed is Added at once, and Removed on rollback in the reverse order, so that the answers for
// the next pod take it into account.
type RareFilter interface {
	// Concerns reports whether pods of a class that is not Rare need this filter nevertheless,
	// because a pod on a node, or an Added pod, has a required anti-affinity that may match them.
	// It is called once per demand of a gang and must be cheap.
	Concerns(class *Class) bool
	// Filter sets refused[i] to a short reason if nodes[i] may not take one more pod of the class,
	// else to "". The nodes have passed the filters of the fast path. All slices belong to the
	// caller.
	Filter(class *Class, nodes []*Node, refused []string)
	// Scores reports whether Score may prefer nodes to others. It is called for every pod and must be
	// cheap.
	Scores(class *Class) bool
	// Score adds the weighted scores of nodes[i] to scores[i], normalised among the nodes given.
	// The nodes have passed Filter.
	Score(class *Class, nodes []*Node, scores []int64)
	// Add and Remove are called for pods of every class, so they must be cheap.
	Add(class *Class, node *Node)
	Remove(class *Class, node *Node)
}

// Placer places gangs on a snapshot, one after another. It keeps an index of nodes per class, and
// updates the index from the nodes that changed. A Placer may be kept as long as its snapshot.
type Placer struct {
	s       *Snapshot
	o       Options
	indexes indexes
	log     []step // steps of the gang being placed, for rollback
	demands []demand

	pins []pinned // CPUs of the steps whose demands ask for CPUs

	// Scratch space of pickRare and pickPinned.
	nodes   []*Node
	ids     []int32
	refused []string
	scores  []int64
	open    []bool

	// For gangs with Near.
	domains *domains
	target  target
	used    []int32 // ranks in domains of the nodes with other pods of the gang
	local   index   // of the nodes of one domain
	// usedOutside means that other pods of the gang are on nodes in no domain.
	usedOutside bool
}

// step is one pod placed.
type step struct{ demand, node int32 }

// demand is the state of a gang's Demand while it is placed.
type demand struct {
	Demand
	number int
	rank   int // of Gang.Ranks
	placed int
	scarce float64 // how many times the minimum fits into the cluster
	size   float64 // largest fraction of the cluster, over all resources, that one pod takes
	rare   bool
	// refused counts the refusals of the rare filter or the pinner, when the last pod did not fit.
	refused map[string]int
	cpus    *NoCPUs // the pinner's reason, when the last pod did not fit
}

// NewPlacer returns a placer for the snapshot.
func NewPlacer(s *Snapshot, o Options) *Placer {
	if o.Weights == (Weights{}) {
		o.Weights = DefaultWeights()
	}
	if len(o.Resources) == 0 {
		o.Resources = []ResourceWeight{{Name: corev1.ResourceCPU, Weight: 1}, {Name: corev1.ResourceMemory, Weight: 1}}
	}
	p := &Placer{s: s, o: o}
	p.indexes.init(s, o)
	return p
}

// SetNetwork replaces Options.Network.
func (p *Placer) SetNetwork(t *network.Tree) { p.o.Network = t }

// attempt is one way to fill a gang's minimum greedily.
type attempt struct {
	strategy Strategy
	order    func(a, b *demand) int
}

func (p *Placer) attempts() [4]attempt {
	return [...]attempt{
		{p.o.Strategy, scarceFirst},
		{MostAllocated, scarceFirst},
		{MostAllocated, largeFirst},
		{LeastAllocated, largeFirst},
	}
}

// Place places the gang's minimum or nothing, and then as many of the remaining pods as fit. A
// placed gang becomes part of the snapshot; a gang that does not fit leaves the snapshot unchanged.
//
// Greedy filling is exact for gangs of one class on the fast path. With several classes it may miss
// a placement, so other orders are tried before giving up.
func (p *Placer) Place(g Gang) Decision {
	switch {
	case len(g.Parts) > 0:
		return p.placeParts(g)
	case g.Near != nil:
		return p.placeNear(g)
	}
	// 1. Check that the minimum of each demand fits alone.
	if short := p.prepare(g); short != nil {
		return Decision{Shortage: short}
	}
	// 2. Place the minimum, in the order that is wished for, or else in up to four orders.
	var short *Shortage
	wished := g.Ranks != nil
	if wished {
		for i, rank := range g.Ranks {
			p.demands[i].rank = rank
		}
		if short = p.minimum(g, attempt{p.o.Strategy, rankFirst}); short != nil {
			p.rollback()
		}
	}
	for i, a := range p.attempts() {
		if wished && short == nil {
			break
		}
		if short = p.minimum(g, a); short == nil {
			break
		}
		p.rollback()
		if i == 0 && !p.mixed() {
			break // every other order gives the same result
		}
	}
	if short != nil {
		return Decision{Shortage: short}
	}
	// 3. Place as many of the remaining pods as fit and are wanted.
	p.sort(byNumber)
	for i := range p.demands {
		d := &p.demands[i]
		n := d.Count - d.placed
		if g.Most > 0 {
			n = min(n, g.Most-len(p.log))
		}
		p.fill(d, p.o.Strategy, n)
	}
	return p.decide(g)
}

// prepare sets up the demands. It returns a Shortage if the minimum of a demand does not fit even
// alone.
func (p *Placer) prepare(g Gang) *Shortage {
	p.log, p.pins = p.log[:0], p.pins[:0]
	p.demands = p.demands[:0]
	for i, d := range g.Demands {
		w := demand{Demand: d, number: i}
		w.rare = d.Class.Rare && (!d.Class.soft || p.o.Rare != nil) || p.o.Rare != nil && p.o.Rare.Concerns(d.Class)
		x := p.indexes.get(d.Class, p.o.Strategy)
		w.size = x.size()
		if d.Min > 0 {
			if x.capacity < int64(d.Min) {
				return p.shortage(x, &w, d.Min, int(x.capacity), d.Min)
			}
			w.scarce = float64(x.capacity) / float64(d.Min)
		}
		p.demands = append(p.demands, w)
	}
	return nil
}

// minimum places the gang's minimum, or returns a Shortage; the caller then rolls back.
func (p *Placer) minimum(g Gang, a attempt) *Shortage {
	p.sort(a.order)
	for i := range p.demands {
		d := &p.demands[i]
		p.fill(d, a.strategy, d.Min)
		if d.placed < d.Min {
			return p.shortage(p.indexes.get(d.Class, a.strategy), d, d.Min, d.placed, d.Min-d.placed)
		}
	}
	if len(p.log) >= g.MinMember {
		return nil
	}
	// Small pods first, so that as many pods as possible fit.
	p.sort(smallFirst)
	for i := range p.demands {
		d := &p.demands[i]
		p.fill(d, a.strategy, min(d.Count-d.placed, g.MinMember-len(p.log)))
	}
	if len(p.log) >= g.MinMember || len(p.demands) == 0 {
		return nil
	}
	d := &p.demands[0]
	for i := range p.demands {
		if d = &p.demands[i]; d.placed < d.Count {
			break
		}
	}
	return p.shortage(p.indexes.get(d.Class, a.strategy), d, g.MinMember, len(p.log), g.MinMember-len(p.log))
}

// fill places up to k pods of the demand.
func (p *Placer) fill(d *demand, strategy Strategy, k int) {
	switch {
	case k <= 0:
	case p.target.active:
		p.fillTarget(d, strategy, k)
	default:
		p.fillFrom(p.indexes.get(d.Class, strategy), d, k)
	}
}

// fillFrom places up to k pods of the demand on the nodes of an index.
func (p *Placer) fillFrom(x *index, d *demand, k int) {
	for range k {
		node := int32(-1)
		d.refused, d.cpus = nil, nil
		switch {
		case len(x.heap) == 0: // no node has room, so neither the rare filter nor the pinner refuses one
		case d.Class.Pins != nil:
			node = p.pickPinned(x, d)
		case d.rare:
			node = p.pickRare(x, d)
		default:
			node = x.best()
		}
		if node < 0 {
			return
		}
		x.place(node)
		if p.o.Rare != nil {
			p.o.Rare.Add(d.Class, &p.s.nodes[node])
		}
		p.log = append(p.log, step{int32(d.number), node})
		d.placed++
	}
}

// pickRare returns the best node for one pod of a class that needs the rare filter, or -1.
func (p *Placer) pickRare(x *index, d *demand) int32 {
	if p.o.Rare != nil && !p.o.Rare.Scores(d.Class) {
		return p.firstRare(x, d)
	}
	n := p.filterRare(x, d)
	if n == 0 {
		return -1
	}
	p.scores = slices.Grow(p.scores[:0], n)[:n]
	clear(p.scores)
	p.o.Rare.Score(d.Class, p.nodes[:n], p.scores)
	best := entry{node: -1}
	for i, id := range p.ids[:n] {
		e := x.heap[x.pos[id]]
		e.key = pack(int64(e.key>>tieBits)+p.scores[i], p.s.ties[id])
		if best.node < 0 || x.before(e, best) {
			best = e
		}
	}
	return best.node
}

// rareBatch is the number of nodes about which firstRare asks first.
const rareBatch = 8

// firstRare returns the best node for one pod of a class to which the rare filter gives no scores, or
// -1. It asks the filter about the best nodes first, and about twice as many whenever it refuses all:
// in a large cluster, most of the time went into nodes that were not needed.
func (p *Placer) firstRare(x *index, d *demand) int32 {
	why, best, batch := map[string]int{}, int32(-1), rareBatch
	p.nodes, p.ids = p.nodes[:0], p.ids[:0]
	ask := func() {
		p.askRare(d)
		if i := slices.Index(p.refused, ""); i >= 0 {
			best = p.ids[i]
			return
		}
		for _, reason := range p.refused {
			why[reason]++
		}
		p.nodes, p.ids = p.nodes[:0], p.ids[:0]
		batch *= 2
	}
	for node := range x.inOrder() {
		p.nodes, p.ids = append(p.nodes, &p.s.nodes[node]), append(p.ids, node)
		if len(p.ids) < batch {
			continue
		}
		if ask(); best >= 0 {
			return best
		}
	}
	if len(p.ids) > 0 {
		ask()
	}
	if best < 0 {
		d.refused = why
	}
	return best
}

// askRare asks the rare filter about p.nodes. p.refused has the answers.
func (p *Placer) askRare(d *demand) {
	p.refused = slices.Grow(p.refused[:0], len(p.nodes))[:len(p.nodes)]
	clear(p.refused)
	p.o.Rare.Filter(d.Class, p.nodes, p.refused)
}

// filterRare asks the rare filter about all nodes that pass the other filters. It returns the
// number n of nodes that pass this filter too; they are p.nodes[:n] and p.ids[:n]. If no node
// passes, d.refused says why.
func (p *Placer) filterRare(x *index, d *demand) int {
	if p.o.Rare == nil {
		d.refused = map[string]int{RefusedUnsupported: len(x.heap)}
		return 0
	}
	p.nodes, p.ids = p.nodes[:0], p.ids[:0]
	for _, e := range x.heap {
		p.nodes, p.ids = append(p.nodes, &p.s.nodes[e.node]), append(p.ids, e.node)
	}
	p.askRare(d)
	n := 0
	for i, why := range p.refused {
		if why == "" {
			p.nodes[n], p.ids[n] = p.nodes[i], p.ids[i]
			n++
		}
	}
	if n == 0 {
		d.refused = map[string]int{}
		for _, why := range p.refused {
			d.refused[why]++
		}
	}
	return n
}

// rollback undoes every step of the gang.
func (p *Placer) rollback() { p.rollbackTo(0, 0) }

// rollbackTo undoes the steps of the gang after the first steps, of which the first pins took CPUs.
func (p *Placer) rollbackTo(steps, pins int) {
	for i := len(p.log) - 1; i >= steps; i-- {
		d := p.demand(p.log[i].demand)
		d.placed--
		p.undo(p.log[i].node, d.Class)
	}
	for _, t := range slices.Backward(p.pins[pins:]) {
		p.o.Pin.GiveBack(t.pin)
	}
	p.log, p.pins = p.log[:steps], p.pins[:pins]
}

func (p *Placer) undo(node int32, c *Class) {
	if p.o.Rare != nil {
		p.o.Rare.Remove(c, &p.s.nodes[node])
	}
	p.s.apply(node, c, -1)
}

// Undo reverts a decision that was made on this placer's snapshot. It is allowed as long as the
// nodes of the decision have not been Set or Removed since.
func (p *Placer) Undo(g Gang, d Decision) {
	for i := len(d.Placed) - 1; i >= 0; i-- {
		for k := len(d.Placed[i]) - 1; k >= 0; k-- {
			p.undo(d.Placed[i][k], g.Demands[i].Class)
		}
	}
	for _, pins := range d.Pins {
		for _, pin := range pins {
			p.o.Pin.GiveBack(pin)
		}
	}
}

// decide turns the log into a Decision.
func (p *Placer) decide(g Gang) Decision {
	all := make([]int32, len(p.log))
	placed := make([][]int32, len(g.Demands))
	p.sort(byNumber)
	start := 0
	for i := range p.demands {
		placed[i] = all[start : start : start+p.demands[i].placed]
		start += p.demands[i].placed
	}
	for _, st := range p.log {
		placed[st.demand] = append(placed[st.demand], st.node)
	}
	if len(p.pins) == 0 {
		return Decision{Placed: placed}
	}
	pins := make([][]Pin, len(g.Demands))
	for _, t := range p.pins {
		pins[t.demand] = append(pins[t.demand], t.pin)
	}
	return Decision{Placed: placed, Pins: pins}
}

// mixed reports whether the order of demands can make a difference.
func (p *Placer) mixed() bool {
	for i := range p.demands {
		if p.demands[i].rare || p.demands[i].Class.key != p.demands[0].Class.key {
			return true
		}
	}
	return false
}

func (p *Placer) demand(number int32) *demand {
	for i := range p.demands {
		if p.demands[i].number == int(number) {
			return &p.demands[i]
		}
	}
	panic("place: step of an unknown demand")
}

func (p *Placer) sort(order func(a, b *demand) int) {
	slices.SortFunc(p.demands, func(a, b demand) int { return order(&a, &b) })
}

func byNumber(a, b *demand) int { return cmp.Compare(a.number, b.number) }

// rankFirst orders demands by rank, and then like scarceFirst.
func rankFirst(a, b *demand) int { return cmp.Or(cmp.Compare(a.rank, b.rank), scarceFirst(a, b)) }

// scarceFirst orders demands with a minimum before those without, and then by how many times the
// minimum fits into the cluster, fewest first.
func scarceFirst(a, b *demand) int {
	if (a.Min > 0) != (b.Min > 0) {
		return cmp.Compare(b.Min, a.Min)
	}
	return cmp.Or(cmp.Compare(a.scarce, b.scarce), largeFirst(a, b))
}

// largeFirst orders demands by pod size, largest first, as in first-fit decreasing.
func largeFirst(a, b *demand) int {
	return cmp.Or(cmp.Compare(b.size, a.size), byNumber(a, b))
}

func smallFirst(a, b *demand) int {
	return cmp.Or(cmp.Compare(a.size, b.size), byNumber(a, b))
}

// Candidates yields the nodes that pass the filters of the fast path for one more pod of a class,
// with their scores, in no particular order. It is for explaining and comparing decisions.
func (p *Placer) Candidates(c *Class) iter.Seq2[*Node, int64] {
	x := p.indexes.get(c, p.o.Strategy)
	return func(yield func(*Node, int64) bool) {
		for _, e := range x.heap {
			if !yield(&p.s.nodes[e.node], int64(e.key>>tieBits)) {
				return
			}
		}
	}
}
