// Package draw draws a machine and the holders of its CPUs, for a terminal and as an HTML page:
// sockets, NUMA nodes, L3 domains, cores and their threads.
package draw

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// lineMax is the width, in characters, at which lines of cores are broken: the width of a terminal.
const lineMax = 80

// Machine draws the topology. Each bracket is a core with its threads' CPU numbers; '*' marks CPUs
// isolated from the kernel's scheduler, 'e' marks efficient cores. If any CPU of the machine is
// held, the holders are listed beside the cores of each L3 domain.
func Machine(w io.Writer, v View) error {
	p, t := &printer{w: w, view: v}, v.Topology
	p.printf("%s, %s of %s, %s, %s, %s\n", plural(len(t.CPUs), "CPU"), plural(len(t.Cores), "core"), threads(t),
		plural(len(t.Sockets), "socket"), plural(len(t.NUMA), "NUMA node"), plural(len(t.L3), "L3 domain"))
	for _, s := range t.Sockets {
		p.printf("socket %d  CPUs %s\n", s.ID, s.CPUs)
		for _, n := range t.NUMA {
			here := n.CPUs.Intersect(s.CPUs)
			if here.IsEmpty() {
				continue
			}
			p.printf("  NUMA node %d  %s  distances %s\n", n.ID, size(n.MemoryBytes), spaced(n.Distances))
			p.l3s(t, here)
		}
	}
	for _, n := range t.NUMA {
		if n.CPUs.IsEmpty() {
			p.printf("NUMA node %d  %s  distances %s  (memory only)\n", n.ID, size(n.MemoryBytes), spaced(n.Distances))
		}
	}
	for _, note := range []struct {
		what string
		cpus cpuset.Set
	}{{"offline", t.Offline}, {"isolated (*)", t.Isolated}, {"efficient (e)", t.Efficient}} {
		if !note.cpus.IsEmpty() {
			p.printf("%s CPUs %s\n", note.what, note.cpus)
		}
	}
	return p.err
}

type printer struct {
	w    io.Writer
	view View
	err  error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// l3s draws the cores of one NUMA node in one socket, by L3 domain.
func (p *printer) l3s(t *cputopology.Topology, here cpuset.Set) {
	left := here
	for i, l := range t.L3 {
		if part := l.CPUs.Intersect(here); !part.IsEmpty() {
			label := fmt.Sprintf("    L3 #%d", i)
			if l.Bytes > 0 {
				label += " " + size(l.Bytes)
			}
			p.cores(t, label, part)
			left = left.Minus(part)
		}
	}
	if !left.IsEmpty() {
		p.cores(t, "    no L3", left)
	}
}

func (p *printer) cores(t *cputopology.Topology, label string, cpus cpuset.Set) {
	line := label + " "
	indent := strings.Repeat(" ", len(line))
	for _, c := range t.Cores {
		if !c.SubsetOf(cpus) {
			continue
		}
		var ids []string
		for id := range c.All() {
			mark := ""
			if t.Isolated.Contains(id) {
				mark = "*"
			}
			if t.Efficient.Contains(id) {
				mark += "e"
			}
			ids = append(ids, strconv.Itoa(id)+mark)
		}
		core := "[" + strings.Join(ids, " ") + "]"
		if len(line)+len(core) > lineMax {
			p.printf("%s\n", line)
			line = indent
		}
		line += core
	}
	for _, who := range p.sitting(cpus) {
		if len(line)+len(who) > lineMax {
			p.printf("%s\n", line)
			line = indent[1:]
		}
		line += " " + who
	}
	p.printf("%s\n", strings.TrimRight(line, " "))
}

// sitting returns each holder of the given CPUs with the number that it holds, and the number of
// idle ones. It returns nil if no CPU of the whole machine is held.
func (p *printer) sitting(cpus cpuset.Set) []string {
	if len(p.view.Holders) == 0 {
		return nil
	}
	var out []string
	for _, h := range p.view.Holders {
		if n := h.CPUs.Intersect(cpus).Len(); n > 0 {
			out = append(out, fmt.Sprintf("%s:%d", h.Name, n))
		}
	}
	if idle := p.view.Idle().Intersect(cpus); idle.Equal(cpus) {
		out = append(out, "idle")
	} else if !idle.IsEmpty() {
		out = append(out, fmt.Sprintf("idle:%d", idle.Len()))
	}
	return out
}

func threads(t *cputopology.Topology) string {
	least := t.ThreadsPerCore()
	for _, c := range t.Cores {
		least = min(least, c.Len())
	}
	if most := t.ThreadsPerCore(); most != least {
		return fmt.Sprintf("%d to %d threads", least, most)
	}
	return plural(least, "thread")
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func size(bytes int64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if bytes >= 1<<u.shift {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/float64(int64(1)<<u.shift)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", bytes)
}

func spaced(v []int) string { return strings.Trim(fmt.Sprint(v), "[]") }
