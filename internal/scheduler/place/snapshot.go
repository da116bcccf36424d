package place

import (
	"hash/fnv"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Snapshot is the state of the nodes that placement reads and changes. It is updated node by node:
// the caller Sets each node whose Generation differs and Removes nodes that are gone. A node keeps
// its index until it is removed; a later node may then get the same index. A Snapshot is not safe
// for concurrent use.
//
// Placement changes the snapshot itself. The caller must account for every successful decision in
// the model from which it Sets nodes; otherwise the next Set of these nodes undoes the decision.
type Snapshot struct {
	dims   *Dims
	nodes  []Node // a free slot has no name
	byName map[string]int32
	free   []int32 // slots of removed nodes

	// amounts holds the Allocatable, Used and UsedNonZero of every node, side by side, so that a
	// scan over all nodes reads memory in order. The vectors of nodes point into amounts; each has
	// width entries.
	amounts []int64
	width   int
	// allocatable is the sum over all nodes.
	allocatable Vector
	// members changes whenever a node is added or removed.
	members int64
	// ties orders nodes of equal score. It is a hash of the name, so that neither the order in
	// which nodes were added nor the alphabetical order of their names decides where pods go.
	ties []uint64

	// changes lists the changed nodes, oldest first; the first entry has number changeBase. Each
	// index remembers the number up to which it has followed, and rebuilds itself if entries that
	// it needs have been dropped.
	changes    []change
	changeBase int64
}

type change struct {
	node   int32
	static bool // more than Used, UsedNonZero and Ports may have changed
}

// NewSnapshot returns a snapshot without nodes.
func NewSnapshot(dims *Dims) *Snapshot {
	return &Snapshot{dims: dims, byName: map[string]int32{}, width: dims.Len(), allocatable: make(Vector, dims.Len())}
}

// Dims returns the dimensions of the snapshot's vectors.
func (s *Snapshot) Dims() *Dims { return s.dims }

// Len returns the number of nodes.
func (s *Snapshot) Len() int { return len(s.byName) }

// Index returns the index of a node.
func (s *Snapshot) Index(name string) (int32, bool) {
	i, ok := s.byName[name]
	return i, ok
}

// Node returns the node at an index, for reading. The pointer is valid until the next Set or
// Remove.
func (s *Snapshot) Node(i int32) *Node { return &s.nodes[i] }

// Generation returns the Generation of the node as last Set. ok is false if there is no such node.
func (s *Snapshot) Generation(name string) (generation int64, ok bool) {
	i, ok := s.byName[name]
	if !ok {
		return 0, false
	}
	return s.nodes[i].Generation, true
}

// All yields the nodes and their indices, for reading.
func (s *Snapshot) All() iter.Seq2[int32, *Node] {
	return func(yield func(int32, *Node) bool) {
		for i := range s.nodes {
			if s.nodes[i].Name != "" && !yield(int32(i), &s.nodes[i]) {
				return
			}
		}
	}
}

// Set adds a node, or replaces the node of the same name, and returns its index. Vectors and ports
// are copied; the other fields are shared. Setting a node to its present state costs next to
// nothing. This happens often, because the snapshot contains placed pods before the model does.
func (s *Snapshot) Set(n Node) int32 {
	if n.Name == "" {
		panic("place: a node needs a name")
	}
	if n.Object == nil {
		n.Object = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
	}
	s.widen(max(len(n.Allocatable), len(n.Used), len(n.UsedNonZero)))
	i, known := s.byName[n.Name]
	if !known {
		i = s.slot(n.Name)
	}
	old := &s.nodes[i]
	static := !known || !sameStatic(old, &n)
	same := !static && equal(old.Allocatable, n.Allocatable) && equal(old.Used, n.Used) &&
		equal(old.UsedNonZero, n.UsedNonZero) && maps.Equal(old.Ports, n.Ports)

	for dim := range s.allocatable {
		s.allocatable[dim] += n.Allocatable.At(dim) - old.Allocatable[dim]
	}
	n.Allocatable = fill(old.Allocatable, n.Allocatable)
	n.Used = fill(old.Used, n.Used)
	n.UsedNonZero = fill(old.UsedNonZero, n.UsedNonZero)
	if same || len(n.Ports) == 0 {
		n.Ports = old.Ports
		if !same {
			n.Ports = nil
		}
	} else {
		n.Ports = maps.Clone(n.Ports)
	}
	*old = n
	if !same {
		s.changed(i, static)
	}
	return i
}

// Remove removes a node. The next node added may get its index.
func (s *Snapshot) Remove(name string) {
	i, ok := s.byName[name]
	if !ok {
		return
	}
	delete(s.byName, name)
	s.members++
	n := &s.nodes[i]
	for dim := range s.allocatable {
		s.allocatable[dim] -= n.Allocatable[dim]
	}
	*n = Node{Allocatable: fill(n.Allocatable, nil), Used: fill(n.Used, nil), UsedNonZero: fill(n.UsedNonZero, nil)}
	s.free = append(s.free, i)
	s.changed(i, true)
}

// slot returns an index for a new node, and sets its tie-breaker.
func (s *Snapshot) slot(name string) int32 {
	h := fnv.New64a()
	h.Write([]byte(name))
	tie := mix(h.Sum64()) >> (64 - tieBits)

	var i int32
	if last := len(s.free) - 1; last >= 0 {
		i = s.free[last]
		s.free = s.free[:last]
		s.ties[i] = tie
	} else {
		i = int32(len(s.nodes))
		s.nodes = append(s.nodes, Node{})
		s.ties = append(s.ties, tie)
		s.grow(len(s.nodes))
	}
	s.byName[name] = i
	s.members++
	return i
}

// mix spreads the differences between similar names over all bits (the finaliser of MurmurHash3, by
// Austin Appleby).
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// grow makes amounts large enough for n nodes.
func (s *Snapshot) grow(n int) {
	have, want := len(s.amounts), n*3*s.width
	if want > cap(s.amounts) {
		s.amounts = slices.Grow(s.amounts, max(want, 2*have)-have)
		s.amounts = s.amounts[:want]
		s.view(0)
		return
	}
	s.amounts = s.amounts[:want]
	clear(s.amounts[have:])
	s.view(n - 1)
}

// widen makes room for more dimensions.
func (s *Snapshot) widen(width int) {
	if width <= s.width {
		return
	}
	width = max(width, s.dims.Len())
	old, oldWidth := s.amounts, s.width
	s.width = width
	s.allocatable = append(s.allocatable, make(Vector, width-oldWidth)...)
	s.amounts = make([]int64, len(s.nodes)*3*width)
	for k := range 3 * len(s.nodes) {
		copy(s.amounts[k*width:], old[k*oldWidth:(k+1)*oldWidth])
	}
	s.view(0)
}

// view points the vectors of nodes[from:] into amounts.
func (s *Snapshot) view(from int) {
	w := s.width
	for i := from; i < len(s.nodes); i++ {
		at := func(k int) Vector { return s.amounts[(3*i+k)*w : (3*i+k+1)*w : (3*i+k+1)*w] }
		n := &s.nodes[i]
		n.Allocatable, n.Used, n.UsedNonZero = at(0), at(1), at(2)
	}
}

// apply adds pods of a class to a node (times = 1), or removes them (times = -1).
func (s *Snapshot) apply(i int32, c *Class, times int64) {
	n := &s.nodes[i]
	for _, need := range c.needs {
		n.Used[need.dim] += times * need.amount
	}
	n.UsedNonZero[CPU] += times * c.NonZero[CPU]
	n.UsedNonZero[Memory] += times * c.NonZero[Memory]
	for _, p := range c.Ports {
		if n.Ports == nil {
			n.Ports = PortSet{}
		}
		n.Ports[p] += int(times)
		if n.Ports[p] == 0 {
			delete(n.Ports, p)
		}
	}
	if len(n.Ports) == 0 {
		n.Ports = nil
	}
	s.changed(i, false)
}

func (s *Snapshot) changed(i int32, static bool) {
	// Following the log is worthwhile only while it is cheaper than a rebuild, so the log is
	// bounded.
	if limit := 2*len(s.nodes) + 1024; len(s.changes) >= 2*limit {
		s.changeBase += int64(limit)
		s.changes = s.changes[:copy(s.changes, s.changes[limit:])]
	}
	s.changes = append(s.changes, change{i, static})
}

// changeEnd returns the number that the next change will have.
func (s *Snapshot) changeEnd() int64 { return s.changeBase + int64(len(s.changes)) }

// sameStatic reports whether the filters and scores that depend only on the node's object give the
// same answers for a and b. A heartbeat brings a new object with equal contents; comparing the
// pointers first makes an unchanged object cheap.
func sameStatic(a, b *Node) bool {
	return a.Unschedulable == b.Unschedulable && a.Standing == b.Standing && (a.Object == b.Object ||
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Object.Labels, b.Object.Labels)) &&
		slices.EqualFunc(a.Taints, b.Taints, func(x, y corev1.Taint) bool { return x.MatchTaint(&y) && x.Value == y.Value })
}

// fill copies src to dst, with zeros beyond the end of src.
func fill(dst, src Vector) Vector {
	clear(dst[copy(dst, src):])
	return dst
}

func equal(a, b Vector) bool {
	for dim := range max(len(a), len(b)) {
		if a.At(dim) != b.At(dim) {
			return false
		}
	}
	return true
}
