package evict

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// depthMax bounds the depth of the queue tree, as in package share, which counts a part of a queue, too.
const depthMax = 16

// queue is a queue in the tree. Its amounts include the queues below.
type queue struct {
	name       string
	path       []int32 // the queue itself, its parent, and so on up to the root
	used       place.Vector
	guarantee  place.Vector
	deserved   share.Limits
	capability share.Limits
	weighed    bool
	kept       bool
}

// queues is the tree of queues. Queues that are not in State.Queues, or whose parents are not, are
// below the root and deserve nothing.
type queues struct {
	list   []queue // sorted by name
	byName map[string]int32
	root   int32
	order  []int32 // the queues, those deepest in the tree first
}

func newQueues(s *State) *queues {
	t := &queues{byName: map[string]int32{}}
	stated := map[string]*Queue{}
	names := []string{share.Root}
	for i := range s.Queues {
		q := &s.Queues[i]
		stated[q.Name] = q
		names = append(names, q.Name)
	}
	for i := range s.Gangs {
		if name := s.Gangs[i].Queue; stated[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	t.list = make([]queue, len(names))
	for i, name := range names {
		t.byName[name] = int32(i)
		t.list[i].name = name
	}
	t.root = t.byName[share.Root]
	for i := range t.list {
		q := &t.list[i]
		q.path = t.pathOf(int32(i), stated)
		if st := stated[q.name]; st != nil {
			q.deserved, q.capability, q.kept, q.weighed = st.Deserved, st.Capability, st.Kept, st.Weighed
			q.guarantee = slices.Clone(st.Guarantee)
			for _, above := range q.path {
				t.list[above].used = t.list[above].used.Plus(st.Used, 1)
			}
		}
	}
	t.guarantees()
	return t
}

// pathOf returns the way from a queue up to the root.
func (t *queues) pathOf(i int32, stated map[string]*Queue) []int32 {
	var path []int32
	for at := i; at != t.root; {
		st := stated[t.list[at].name]
		if len(path) == depthMax || len(path) > 0 && st == nil {
			return []int32{i, t.root}
		}
		path = append(path, at)
		up, ok := t.root, true
		if st != nil && st.Parent != "" {
			up, ok = t.byName[st.Parent]
		}
		if !ok {
			return []int32{i, t.root}
		}
		at = up
	}
	return append(path, t.root)
}

// guarantees raises what each queue guarantees to the sum of the queues below it, and what it
// deserves to what it guarantees.
func (t *queues) guarantees() {
	t.order = make([]int32, len(t.list))
	for i := range t.order {
		t.order[i] = int32(i)
	}
	slices.SortStableFunc(t.order, func(a, b int32) int {
		return cmp.Compare(len(t.list[b].path), len(t.list[a].path))
	})
	below := make([]place.Vector, len(t.list))
	for _, i := range t.order {
		q := &t.list[i]
		for dim, amount := range below[i] {
			if amount > q.guarantee.At(dim) {
				q.guarantee = q.guarantee.Plus(nil, 0)
				for len(q.guarantee) <= dim {
					q.guarantee = append(q.guarantee, 0)
				}
				q.guarantee[dim] = amount
			}
		}
		for dim := range q.deserved {
			if q.deserved[dim] != share.Unlimited {
				q.deserved[dim] = max(q.deserved[dim], q.guarantee.At(dim))
			}
		}
		if len(q.path) > 1 {
			below[q.path[1]] = below[q.path[1]].Plus(q.guarantee, 1)
		}
	}
}

// of returns the index of the queue with this name, or of the root for a queue that neither the
// state nor a gang names.
func (t *queues) of(name string) int32 {
	if i, ok := t.byName[name]; ok {
		return i
	}
	return t.root
}

// at returns a limit; ok is false if the resource has no limit.
func at(l share.Limits, dim int) (limit int64, ok bool) {
	if dim < len(l) && l[dim] != share.Unlimited {
		return l[dim], true
	}
	return 0, false
}

// relation is what the gangs of one queue are to a claim.
type relation struct {
	rule Rule
	// levels are the queues on the victim's path below the level where it meets the claimant's.
	levels []int32
	// common are the queues above both, without the root. They lose the victim and get the claimant.
	common []int32
	// reason says why gangs of the queue cannot be evicted; rule is then zero.
	reason string
}

// relate decides by which rule a claim may evict gangs of a queue. Priorities and the limits that
// depend on the other victims are checked gang by gang. What queues are entitled to is for minimums.
func (t *queues) relate(r Rules, c *claim, victim int32) relation {
	a, b := t.list[c.queue].path, t.list[victim].path
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	path := t.list[victim].path
	common := path[len(b):max(len(b), len(path)-1)]
	if t.list[victim].name == "" || c.queue == victim {
		if !r.Preempt {
			return relation{reason: exemptPreempt}
		}
		return relation{rule: Preempt, common: common}
	}
	kept := slices.ContainsFunc(b, func(q int32) bool { return t.list[q].kept })
	switch {
	case !c.Surplus && t.entitled(a, c, true):
		return relation{rule: Guarantee, levels: b, common: common}
	case kept:
		return relation{reason: exemptKept}
	case r.Reclaim && !c.Surplus && t.entitled(a, c, false):
		return relation{rule: Reclaim, levels: b, common: common}
	case r.PreemptAcross:
		return relation{rule: PreemptAcross, levels: b, common: common}
	}
	return relation{reason: exemptQueue}
}

// entitled reports whether all queues of the path stay within what they guarantee, or deserve, when
// the claimant gets its minimum. At least one of them must state an amount of a resource that the
// claimant takes in any case. Resources that a guarantee does not name are bounded by what the queue
// deserves.
func (t *queues) entitled(path []int32, c *claim, guarantee bool) bool {
	stated := false
	for _, i := range path {
		q := &t.list[i]
		for dim, amount := range c.most {
			if amount <= 0 {
				continue
			}
			limit, ok := at(q.deserved, dim)
			states := ok && !guarantee
			if g := q.guarantee.At(dim); guarantee && g > 0 {
				limit, ok, states = g, true, true
			}
			if ok && q.used.At(dim)+amount > limit {
				return false
			}
			stated = stated || states && c.least.At(dim) > 0
		}
	}
	return stated
}
