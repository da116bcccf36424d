package draw

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// The input of the page's template: plain text, which the template escapes.
type (
	pageData struct {
		Title, Machine  string
		Figures         []figure
		Sockets         []pageSocket
		MemoryOnly      []string
		Holders         []pageHolder
		Notes           []string
		Distances       [][]string
		Idle, Reserved  bool
		Isolated, Kinds bool
	}
	figure     struct{ Value, What string }
	pageSocket struct {
		Name string
		NUMA []pageNUMA
	}
	pageNUMA struct {
		Name, Memory string
		Idle, CPUs   int
		L3           []pageL3
	}
	pageL3 struct {
		Name, Bytes string
		Idle, CPUs  int
		Free        bool // entirely idle
		Cores       []pageCore
	}
	pageCore struct {
		Efficient bool
		CPUs      []pageCPU
	}
	pageCPU struct {
		ID     int
		Class  string // idle, held, kept, reserved or isolated
		Holder int    // index into Holders, -1 for none
		Style  template.CSS
		Hint   string
	}
	pageHolder struct {
		Name, CPUs, Spans string
		Count             int
		Style             template.CSS
		Shared            bool
	}
)

// Page writes the view as one self-contained HTML page.
func Page(w io.Writer, v View) error {
	t := v.Topology
	d := pageData{Title: v.Title, Notes: v.Notes,
		Machine: fmt.Sprintf("%s of %s", plural(len(t.Cores), "core"), threads(t))}
	owner := map[int]int{}
	kept := map[int]int{}
	for i, h := range v.Holders {
		for id := range h.CPUs.All() {
			if _, taken := owner[id]; !taken {
				owner[id] = i
			}
		}
		for id := range h.Kept.All() {
			kept[id] = i
		}
		d.Holders = append(d.Holders,
			pageHolder{Name: h.Name, CPUs: h.CPUs.String(), Count: h.CPUs.Len(), Shared: h.Shared, Style: colour(i),
				Spans: fmt.Sprintf("%d L3 · %d NUMA", h.L3, h.NUMA)})
	}
	cpu := func(id int) pageCPU {
		c := pageCPU{ID: id, Class: "idle", Holder: -1, Hint: fmt.Sprintf("CPU %d: idle", id)}
		mine, held := owner[id]
		keeper, isKept := kept[id]
		switch {
		case held:
			c.Class, c.Holder, c.Style = "held", mine, colour(mine)
			c.Hint = fmt.Sprintf("CPU %d: %s", id, v.Holders[mine].Name)
		case isKept:
			c.Class, c.Holder, c.Style = "kept", keeper, colour(keeper)
			c.Hint = fmt.Sprintf("CPU %d: kept free for %s", id, v.Holders[keeper].Name)
		case v.Reserved.Contains(id):
			c.Class, c.Hint, d.Reserved = "reserved", fmt.Sprintf("CPU %d: reserved for the system", id), true
		case t.Isolated.Contains(id):
			c.Class, c.Hint, d.Isolated = "isolated", fmt.Sprintf("CPU %d: isolated from the kernel's scheduler", id), true
		default:
			d.Idle = true
		}
		return c
	}
	cores := func(within cpuset.Set) (out []pageCore, idle int) {
		for _, c := range t.Cores {
			if !c.SubsetOf(within) {
				continue
			}
			core := pageCore{Efficient: t.Efficient.Overlaps(c)}
			d.Kinds = d.Kinds || core.Efficient
			for id := range c.All() {
				k := cpu(id)
				if k.Class == "idle" {
					idle++
				}
				core.CPUs = append(core.CPUs, k)
			}
			out = append(out, core)
		}
		return out, idle
	}
	free := 0
	for _, s := range t.Sockets {
		socket := pageSocket{Name: fmt.Sprintf("Socket %d", s.ID)}
		for _, n := range t.NUMA {
			here := n.CPUs.Intersect(s.CPUs)
			if here.IsEmpty() {
				continue
			}
			numa := pageNUMA{Name: fmt.Sprintf("NUMA node %d", n.ID), Memory: size(n.MemoryBytes), CPUs: here.Len()}
			left := here
			add := func(name string, bytes int64, cpus cpuset.Set) {
				l3 := pageL3{Name: name, CPUs: cpus.Len()}
				if bytes > 0 {
					l3.Bytes = size(bytes)
				}
				l3.Cores, l3.Idle = cores(cpus)
				l3.Free = l3.Idle == l3.CPUs
				if l3.Free {
					free++
				}
				numa.Idle += l3.Idle
				numa.L3 = append(numa.L3, l3)
			}
			for i, l := range t.L3 {
				if part := l.CPUs.Intersect(here); !part.IsEmpty() {
					add(fmt.Sprintf("L3 %d", i), l.Bytes, part)
					left = left.Minus(part)
				}
			}
			if !left.IsEmpty() {
				add("no L3", 0, left)
			}
			socket.NUMA = append(socket.NUMA, numa)
		}
		d.Sockets = append(d.Sockets, socket)
	}
	for _, n := range t.NUMA {
		if n.CPUs.IsEmpty() {
			d.MemoryOnly = append(d.MemoryOnly, fmt.Sprintf("NUMA node %d: %s of memory, no CPUs", n.ID, size(n.MemoryBytes)))
		}
	}
	if len(t.NUMA) > 1 && len(t.NUMA) <= 16 {
		head := []string{""}
		for _, n := range t.NUMA {
			head = append(head, fmt.Sprint(n.ID))
		}
		d.Distances = append(d.Distances, head)
		for _, n := range t.NUMA {
			row := []string{fmt.Sprint(n.ID)}
			for _, x := range n.Distances {
				row = append(row, fmt.Sprint(x))
			}
			d.Distances = append(d.Distances, row)
		}
	}
	if !t.Offline.IsEmpty() {
		d.Notes = append(slices.Clone(d.Notes), "offline CPUs: "+t.Offline.String())
	}
	d.Figures = []figure{{fmt.Sprint(len(t.CPUs)), "CPUs"}, {fmt.Sprint(len(t.Sockets)), "sockets"},
		{fmt.Sprint(len(t.NUMA)), "NUMA nodes"},
		{fmt.Sprint(len(t.L3)), "L3 domains"}, {fmt.Sprint(len(v.Holders)), "pinned pods"},
		{fmt.Sprint(v.Idle().Len()), "idle CPUs"}, {fmt.Sprint(free), "idle L3 domains"}}
	return page.Execute(w, d)
}

// colour returns the hue of the i-th holder, chosen far from the hues of the holders before it. The
// page's style sheet sets the lightness.
func colour(i int) template.CSS {
	return template.CSS(fmt.Sprintf("--h:%d", i*137508/1000%360))
}
