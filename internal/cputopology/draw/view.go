package draw

import (
	"fmt"
	"io"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// View is a machine and who holds its CPUs.
type View struct {
	Title    string
	Topology *cputopology.Topology
	Reserved cpuset.Set
	Holders  []Holder
	Notes    []string // what else is to be said: objects that contradict each other
}

// Holder is a pod, or whoever else holds CPUs.
type Holder struct {
	Name string
	CPUs cpuset.Set
	// Kept are CPUs that nobody else may use for its sake, without being its own.
	Kept     cpuset.Set
	Shared   bool // others may use the same CPUs
	L3, NUMA int  // domains that it spans
}

// Of is the view of a node. names gives the names of pods by their keys; a pod without one is called by its key.
func Of(n *allocate.Node, names map[string]string) View {
	v := View{Title: n.Name, Topology: n.Layout().Topology(), Reserved: n.Layout().Reserved()}
	for _, a := range n.Pods() {
		h := Holder{Name: a.Key, CPUs: a.CPUs()}
		if name := names[a.Key]; name != "" {
			h.Name = name
		}
		for _, c := range a.Containers {
			h.Kept = h.Kept.Union(c.Held)
			h.Shared = h.Shared || c.Share != 1
		}
		h.Kept = h.Kept.Minus(h.CPUs)
		h.L3, h.NUMA = n.Spans(h.CPUs)
		v.Holders = append(v.Holders, h)
	}
	slices.SortStableFunc(v.Holders, func(a, b Holder) int { return a.CPUs.First() - b.CPUs.First() })
	return v
}

// Held is all CPUs that somebody holds.
func (v View) Held() cpuset.Set {
	var s cpuset.Set
	for _, h := range v.Holders {
		s = s.Union(h.CPUs)
	}
	return s
}

// Holders lists who sits where, after Machine.
func Holders(w io.Writer, v View) error {
	p := &printer{w: w}
	if !v.Reserved.IsEmpty() {
		p.printf("reserved CPUs %s\n", v.Reserved)
	}
	idle := v.Topology.Online().Minus(v.Held()).Minus(v.Reserved)
	p.printf("%s held by %s, %d idle\n", plural(v.Held().Len(), "CPU"), plural(len(v.Holders), "pod"), idle.Len())
	for _, h := range v.Holders {
		what := ""
		if h.Shared {
			what = "  shared"
		}
		if !h.Kept.IsEmpty() {
			what += fmt.Sprintf("  keeps %s free", h.Kept)
		}
		p.printf("  %-40s %s on CPUs %s (%s, %s)%s\n", h.Name, plural(h.CPUs.Len(), "CPU"), h.CPUs, plural(h.L3, "L3 domain"), plural(h.NUMA, "NUMA node"), what)
	}
	for _, note := range v.Notes {
		p.printf("! %s\n", note)
	}
	return p.err
}
