package draw

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// View is a machine and the holders of its CPUs.
type View struct {
	Title    string
	Topology *cputopology.Topology
	Reserved cpuset.Set
	Holders  []Holder
	Notes    []string // additional remarks, for example about contradictory objects
}

// Holder is a pod that holds CPUs, or a container that the kubelet has pinned.
type Holder struct {
	Name string
	CPUs cpuset.Set
	// Kept are CPUs that are not the holder's own but that others may not use because of it.
	Kept     cpuset.Set
	Shared   bool // others may use the same CPUs
	L3, NUMA int  // number of domains that it spans
}

// Of returns the view of a node. names maps the keys of pods to their names; a pod without a name
// is shown by its key.
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

// Held returns all CPUs that are held.
func (v View) Held() cpuset.Set {
	var s cpuset.Set
	for _, h := range v.Holders {
		s = s.Union(h.CPUs)
	}
	return s
}

// Idle returns all CPUs that are neither held, kept free, reserved nor isolated by the kernel.
func (v View) Idle() cpuset.Set {
	idle := v.Topology.Online().Minus(v.Held()).Minus(v.Reserved).Minus(v.Topology.Isolated)
	for _, h := range v.Holders {
		idle = idle.Minus(h.Kept)
	}
	return idle
}

// Holders writes the table of holders, which follows the output of Machine.
func Holders(w io.Writer, v View) error {
	p := &printer{w: w}
	if !v.Reserved.IsEmpty() {
		p.printf("reserved CPUs %s\n", v.Reserved)
	}
	p.printf("%s held by %s, %d idle\n", plural(v.Held().Len(), "CPU"), plural(len(v.Holders), "pod"), v.Idle().Len())
	if len(v.Holders) > 0 {
		p.printf("\n")
		p.table(v.Holders)
	}
	for _, note := range v.Notes {
		p.printf("! %s\n", note)
	}
	return p.err
}

func (p *printer) table(holders []Holder) {
	table := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	rows := &printer{w: table, err: p.err}
	rows.printf("POD\tCPUS\tL3\tNUMA\tSET\n")
	for _, h := range holders {
		set := h.CPUs.String()
		if h.Shared {
			set += " (shared)"
		}
		if !h.Kept.IsEmpty() {
			set += fmt.Sprintf(" (and keeps %s free)", h.Kept)
		}
		rows.printf("%s\t%d\t%d\t%d\t%s\n", h.Name, h.CPUs.Len(), h.L3, h.NUMA, set)
	}
	p.err = errors.Join(rows.err, table.Flush())
}
