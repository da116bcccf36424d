package place

import (
	"container/heap"
	"iter"
	"math"
	"slices"
)

// tieBits is the number of low bits of an entry's key that hold the node's tie-breaker; the high
// bits hold its score.
const tieBits = 40

// arity is the number of children of a heap entry.
const arity = 4

// pack returns a key that orders by score, then by tie-breaker.
func pack(score int64, tie uint64) uint64 {
	return uint64(min(max(score, 0), 1<<(64-tieBits)-1))<<tieBits | tie
}

// index holds, for one class and strategy, how many more pods each node takes and which node is
// best. It follows the snapshot's changes lazily: indexes.get brings it up to date.
//
//	Snapshot.changes: ... 17 4 4 90 │ 12 5            cursor: up to here the index has followed
//	                                └ cursor
//
// The state of an index is a function of the snapshot's state alone, not of its history.
type index struct {
	s        *Snapshot
	class    *Class
	strategy Strategy
	scorer   *scorer
	static   *static
	epoch    int // epoch of static at the last rebuild
	cursor   int64

	// heap holds the nodes that take a pod, best first (a heap of arity 4: fewer levels than a
	// binary heap, in fewer cache lines).
	heap     []entry
	pos      []int32 // by node: position in heap, or -1
	fit      []int32 // by node: how many more pods of the class it takes
	capacity int64   // sum of fit
	// limit is, by node, the dimension that limits fit, or -1 if the node's object refuses the class, and
	// limits counts the nodes by dimension.
	limit  []int16
	limits []int

	diagnosis   *diagnosis // why nodes take no more pods; nil, or valid for cursor diagnosedAt
	diagnosedAt int64
	used        int64 // for eviction: value of indexes.clock at the last use
}

type entry struct {
	key  uint64
	node int32
}

// follow brings the index up to date with the snapshot.
func (x *index) follow() {
	x.static.follow()
	end := x.s.changeEnd()
	behind := end - x.cursor
	if x.cursor < x.s.changeBase || x.epoch != x.static.epoch || len(x.pos) != len(x.s.nodes) ||
		behind > int64(len(x.pos)/4)+8 {
		x.rebuild()
		return
	}
	for _, c := range x.s.changes[x.cursor-x.s.changeBase:] {
		x.update(c.node)
	}
	x.cursor = end
}

// rebuild computes the index from the snapshot, without using its previous state.
func (x *index) rebuild() {
	n := len(x.s.nodes)
	x.pos, x.fit = resize(x.pos, n), resize(x.fit, n)
	x.limit, x.limits = slices.Grow(x.limit[:0], n)[:n], make([]int, x.s.width)
	x.heap = x.heap[:0]
	x.capacity = 0
	for i := range x.s.nodes {
		node := int32(i)
		fit, limit := x.fits(node)
		x.fit[node], x.limit[node], x.pos[node] = fit, limit, -1
		if limit >= 0 {
			x.limits[limit]++
		}
		if fit == 0 {
			continue
		}
		x.capacity += int64(fit)
		x.pos[node] = int32(len(x.heap))
		x.heap = append(x.heap, entry{x.key(node), node})
	}
	x.order()
	x.epoch, x.cursor = x.static.epoch, x.s.changeEnd()
}

// order makes a heap of the entries.
func (x *index) order() {
	for i := (len(x.heap)-2+arity)/arity - 1; i >= 0; i-- {
		x.down(i)
	}
}

// update applies a change of one node.
func (x *index) update(node int32) {
	fit, limit := x.fits(node)
	if before := x.limit[node]; before >= 0 {
		x.limits[before]--
	}
	if x.limit[node] = limit; limit >= 0 {
		x.limits[limit]++
	}
	x.capacity += int64(fit) - int64(x.fit[node])
	x.fit[node] = fit
	x.rank(node)
}

// rank moves a node to the place in the heap that belongs to its fit and score.
func (x *index) rank(node int32) {
	at := int(x.pos[node])
	switch {
	case x.fit[node] == 0 && at < 0:
	case x.fit[node] == 0:
		last := len(x.heap) - 1
		moved := x.heap[last]
		x.heap = x.heap[:last]
		x.pos[node] = -1
		if at < last {
			x.heap[at] = moved
			x.pos[moved.node] = int32(at)
			x.fix(at)
		}
	case at < 0:
		x.pos[node] = int32(len(x.heap))
		x.heap = append(x.heap, entry{x.key(node), node})
		x.up(len(x.heap) - 1)
	default:
		x.heap[at].key = x.key(node)
		x.fix(at)
	}
}

// best returns the node for the next pod, or -1.
func (x *index) best() int32 {
	if len(x.heap) == 0 {
		return -1
	}
	return x.heap[0].node
}

// inOrder yields the nodes, best first. The first k nodes take time in proportion to k log k. The index
// must not change meanwhile.
func (x *index) inOrder() iter.Seq[int32] {
	return func(yield func(int32) bool) {
		next := frontier{x: x}
		if len(x.heap) > 0 {
			next.at = append(next.at, 0)
		}
		for len(next.at) > 0 {
			at := heap.Pop(&next).(int)
			if !yield(x.heap[at].node) {
				return
			}
			for child := arity*at + 1; child <= arity*(at+1) && child < len(x.heap); child++ {
				heap.Push(&next, child)
			}
		}
	}
}

// frontier has the positions in an index's heap that inOrder may yield next: those whose parents it has
// yielded. It implements heap.Interface.
type frontier struct {
	x  *index
	at []int
}

func (f *frontier) Len() int           { return len(f.at) }
func (f *frontier) Less(i, j int) bool { return f.x.before(f.x.heap[f.at[i]], f.x.heap[f.at[j]]) }
func (f *frontier) Swap(i, j int)      { f.at[i], f.at[j] = f.at[j], f.at[i] }
func (f *frontier) Push(at any)        { f.at = append(f.at, at.(int)) }

func (f *frontier) Pop() any {
	last := len(f.at) - 1
	at := f.at[last]
	f.at = f.at[:last]
	return at
}

// place puts one pod of the class on a node that takes it. The index must be up to date, and stays
// up to date.
func (x *index) place(node int32) {
	x.s.apply(node, x.class, 1)
	x.cursor = x.s.changeEnd()
	x.fit[node]-- // what limits it stays the same
	x.capacity--
	if len(x.class.Ports) > 0 { // a pod's host ports conflict with those of the next pod
		x.capacity -= int64(x.fit[node])
		x.fit[node] = 0
	}
	x.rank(node)
}

// fits returns how many more pods of the class a node takes, and the resource that limits the number, as
// room does, or -1 if the node's object refuses the class.
func (x *index) fits(node int32) (fit int32, limit int16) {
	if x.static.refused[node] != passes {
		return 0, -1
	}
	fit, dim := x.room(node)
	if len(x.class.Ports) > 0 {
		if fit = min(fit, 1); slices.ContainsFunc(x.class.Ports, x.s.nodes[node].Ports.Conflicts) {
			fit = 0
		}
	}
	return fit, int16(dim)
}

// room returns how many more pods of the class fit into a node's free resources, and the dimension
// that limits the number.
func (x *index) room(node int32) (fit int32, limit int) {
	w := x.s.width
	amounts := x.s.amounts[int(node)*3*w:][:2*w]
	room := int64(math.MaxInt32)
	for i := range x.class.needs {
		need := &x.class.needs[i]
		free := amounts[need.dim] - amounts[w+need.dim]
		if free < need.amount {
			return 0, need.dim
		}
		if r := quotient(free, need.amount, need.inverse); r < room {
			room, limit = r, need.dim
		}
	}
	return int32(room), limit
}

func (x *index) key(node int32) uint64 {
	w := x.s.width
	amounts := x.s.amounts[int(node)*3*w:][:3*w]
	return pack(x.static.score[node]+x.scorer.score(x.class, x.strategy, amounts[:w], amounts[w:2*w], amounts[2*w:]),
		x.s.ties[node])
}

// size returns the dominant share of one pod: the largest of its requests relative to the
// allocatable amount of all nodes.
func (x *index) size() float64 {
	size := 0.0
	for _, need := range x.class.needs {
		if all := x.s.allocatable.At(need.dim); all > 0 {
			size = max(size, float64(need.amount)/float64(all))
		}
	}
	return size
}

// before orders the heap. The order is total, so that the order in which nodes were added and
// changed does not decide ties.
func (x *index) before(a, b entry) bool {
	if a.key != b.key {
		return a.key > b.key
	}
	return a.node != b.node && x.s.nodes[a.node].Name < x.s.nodes[b.node].Name
}

func (x *index) fix(i int) {
	if !x.down(i) {
		x.up(i)
	}
}

func (x *index) up(i int) {
	e := x.heap[i]
	for i > 0 {
		parent := (i - 1) / arity
		if !x.before(e, x.heap[parent]) {
			break
		}
		x.heap[i] = x.heap[parent]
		x.pos[x.heap[i].node] = int32(i)
		i = parent
	}
	x.heap[i] = e
	x.pos[e.node] = int32(i)
}

// down moves an entry down the heap, and reports whether it moved.
func (x *index) down(i int) bool {
	e, start := x.heap[i], i
	for {
		child := arity*i + 1
		if child >= len(x.heap) {
			break
		}
		for c := child + 1; c < min(arity*(i+1)+1, len(x.heap)); c++ {
			if x.before(x.heap[c], x.heap[child]) {
				child = c
			}
		}
		if !x.before(x.heap[child], e) {
			break
		}
		x.heap[i] = x.heap[child]
		x.pos[x.heap[i].node] = int32(i)
		i = child
	}
	x.heap[i] = e
	x.pos[e.node] = int32(i)
	return i > start
}

func resize(v []int32, n int) []int32 {
	if cap(v) < n {
		return make([]int32, n, n+n/8)
	}
	return v[:n]
}

// indexes keeps the indexes of recently used classes.
type indexes struct {
	s       *Snapshot
	o       Options
	scorer  *scorer
	byClass map[indexKey]*index
	statics map[string]*static
	clock   int64
}

type indexKey struct {
	class    string
	strategy Strategy
}

// indexBytes bounds the memory of the indexes kept. At 26 bytes per node and index, it is enough
// for 1,000 classes on 1,000 nodes. At least indexesMin indexes are kept.
const (
	indexBytes   = 24 << 20
	bytesPerNode = 26
	indexesMin   = 8
)

func (c *indexes) init(s *Snapshot, o Options) {
	*c = indexes{s: s, o: o, scorer: newScorer(s.dims, o), byClass: map[indexKey]*index{}, statics: map[string]*static{}}
}

// get returns the up-to-date index of a class.
func (c *indexes) get(class *Class, strategy Strategy) *index {
	c.clock++
	c.s.widen(len(class.Request)) // the class may ask for a resource that no node has
	k := indexKey{class.key, strategy}
	x := c.byClass[k]
	if x == nil {
		x = c.recycle()
		st := c.statics[class.staticKey]
		if st == nil {
			st = &static{s: c.s, class: class, weights: c.o.Weights}
			c.statics[class.staticKey] = st
		}
		st.users++
		*x = index{
			s: c.s, class: class, strategy: strategy, scorer: c.scorer, static: st, cursor: -1,
			heap: x.heap, pos: x.pos, fit: x.fit, limit: x.limit,
		}
		c.byClass[k] = x
	}
	x.used = c.clock
	x.follow()
	return x
}

// recycle returns an index to overwrite: a new one or, if there are enough, the least recently used
// one.
func (c *indexes) recycle() *index {
	if len(c.byClass) < max(indexesMin, indexBytes/bytesPerNode/(len(c.s.nodes)+1)) {
		return &index{}
	}
	var oldest indexKey
	var old *index
	for k, x := range c.byClass {
		if old == nil || x.used < old.used {
			oldest, old = k, x
		}
	}
	delete(c.byClass, oldest)
	if old.static.users--; old.static.users == 0 {
		delete(c.statics, old.static.class.staticKey)
	}
	return old
}
