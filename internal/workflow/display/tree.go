package display

import (
	"cmp"
	"slices"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// entry is a node with the nodes shown under it.
type entry struct {
	*wf.NodeStatus
	kids []*entry
}

// forest returns the trees of a workflow: first the tree of its root, then the trees of its exit
// handler and hooks.
func forest(w *wf.Workflow) []*entry {
	nodes := w.Status.Nodes
	byID := make(map[string]*entry, len(nodes))
	byName := make(map[string]*entry, len(nodes))
	for id := range nodes {
		n := nodes[id]
		e := &entry{NodeStatus: &n}
		byID[id] = e
		byName[n.Name] = e
	}
	var roots []*entry
	for _, e := range byID {
		if parent := parentOf(e, byID, byName); parent != nil {
			parent.kids = append(parent.kids, e)
		} else {
			roots = append(roots, e)
		}
	}
	for _, e := range byID {
		order(e)
	}
	slices.SortFunc(roots, func(a, b *entry) int {
		switch w.Name { // the workflow's own node comes first
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return cmp.Or(a.StartedAt.Compare(b.StartedAt.Time), natural(a.Name, b.Name))
	})
	return roots
}

// parentOf returns the entry under which e is shown, or nil if e is a root.
func parentOf(e *entry, byID, byName map[string]*entry) *entry {
	// 1. Attempts and items: NAME(INDEX...) under the Retry or TaskGroup node NAME.
	if name, ok := strings.CutSuffix(e.Name, ")"); ok {
		if i := strings.LastIndexByte(name, '('); i > 0 {
			if p := byName[name[:i]]; p != nil && p != e && (p.Type == wf.NodeRetry || p.Type == wf.NodeTaskGroup) {
				return p
			}
		}
	}
	boundary := byID[e.BoundaryID]
	if boundary == nil || boundary == e {
		return nil
	}
	// 2. Steps: BOUNDARY[i].NAME under the StepGroup BOUNDARY[i].
	if rest, ok := strings.CutPrefix(e.Name, boundary.Name+"["); ok {
		if index, _, ok := strings.Cut(rest, "]."); ok {
			if p := byName[boundary.Name+"["+index+"]"]; p != nil && p != e {
				return p
			}
		}
	}
	// 3. Everything else under its boundary.
	return boundary
}

// order sorts the entries under e in the order of execution. Entries whose order is unknown are
// sorted by name.
func order(e *entry) {
	if len(e.kids) < 2 {
		return
	}
	var depth map[*entry]int
	if e.Type == wf.NodeDAG || e.Type == wf.NodePod {
		depth = depths(e.kids)
	}
	listed := map[string]int{}
	if e.Type == wf.NodeStepGroup {
		for i, id := range e.Children {
			listed[id] = i
		}
	}
	// A handler or hook of a step comes after the step.
	position := func(k *entry) int {
		if i, ok := listed[k.ID]; ok {
			return i
		}
		return len(listed)
	}
	slices.SortFunc(e.kids, func(a, b *entry) int {
		if e.Type == wf.NodeDAG || e.Type == wf.NodePod {
			return cmp.Or(a.StartedAt.Compare(b.StartedAt.Time), depth[a]-depth[b], natural(a.Name, b.Name))
		}
		return cmp.Or(position(a)-position(b), natural(a.Name, b.Name))
	})
}

// depths returns, for each sibling, the length of the longest chain of edges from siblings that
// leads to it.
func depths(kids []*entry) map[*entry]int {
	at := make(map[string]*entry, len(kids))
	for _, k := range kids {
		at[k.ID] = k
	}
	waits := make(map[*entry]int, len(kids))
	for _, k := range kids {
		for _, id := range k.Children {
			if c := at[id]; c != nil {
				waits[c]++
			}
		}
	}
	depth := make(map[*entry]int, len(kids))
	var ready []*entry
	for _, k := range kids {
		if waits[k] == 0 {
			ready = append(ready, k)
		}
	}
	for len(ready) > 0 {
		k := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		for _, id := range k.Children {
			c := at[id]
			if c == nil {
				continue
			}
			depth[c] = max(depth[c], depth[k]+1)
			if waits[c]--; waits[c] == 0 {
				ready = append(ready, c)
			}
		}
	}
	return depth
}

// natural compares names with numbers in natural order: a(2) before a(10).
func natural(a, b string) int {
	for a != "" && b != "" {
		if digit(a[0]) && digit(b[0]) {
			na, ra := number(a)
			nb, rb := number(b)
			if c := cmp.Or(len(na)-len(nb), strings.Compare(na, nb)); c != 0 {
				return c
			}
			a, b = ra, rb
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// number splits the leading digits of s, without leading zeros, from the rest.
func number(s string) (digits, rest string) {
	i := 0
	for i < len(s) && digit(s[i]) {
		i++
	}
	return strings.TrimLeft(s[:i], "0"), s[i:]
}

// visible returns the entries shown for e: e itself; for a Retry with one attempt, the attempt; for
// an omitted node, or a node that Match hides together with all nodes under it, none.
func (o *Options) visible(e *entry) []*entry {
	switch {
	case e.Phase == wf.PhaseOmitted && !o.Wide:
		return nil
	case e.Type == wf.NodeRetry && len(e.kids) == 1:
		return o.visible(e.kids[0])
	case o.Match != nil && !o.anyMatch(e):
		return nil
	}
	return []*entry{e}
}

func (o *Options) anyMatch(e *entry) bool {
	return o.Match(e.NodeStatus) || slices.ContainsFunc(e.kids, o.anyMatch)
}

func (o *Options) kids(e *entry) []*entry {
	var out []*entry
	for _, k := range e.kids {
		out = append(out, o.visible(k)...)
	}
	return out
}
