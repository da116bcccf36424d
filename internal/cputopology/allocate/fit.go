package allocate

import "slices"

// What a choice leaves behind matters to the pods that come next. Those are not known, but what runs on a node is a fair
// sample of them: Fit counts for how many sizes of the pods on the node the NUMA node could still take one without
// breaking into another idle L3 domain, and cannot after the choice. It is what keeps, for example, a gap of four CPUs
// beside an idle L3 domain of eight for pods of twelve, rather than filling it with three CPUs that fit anywhere.

// podSize counts the pods on a node that hold so many CPUs exclusively.
type podSize struct{ cpus, pods int }

// sizesMax bounds how many sizes Fit considers on a node: the smallest ones.
const sizesMax = 16

// countSize adds (+1) or removes (-1) a pod from the sizes on the node, which are kept in ascending order.
func (n *Node) countSize(a *Allocation, sign int) {
	cpus := 0
	for _, c := range a.Containers {
		if c.Share == 1 && !c.shadow {
			cpus += c.CPUs.Len()
		}
	}
	if cpus == 0 {
		return
	}
	i, found := slices.BinarySearchFunc(n.sizes, cpus, func(s podSize, cpus int) int { return s.cpus - cpus })
	if !found {
		n.sizes = slices.Insert(n.sizes, i, podSize{cpus: cpus})
	}
	if n.sizes[i].pods += sign; n.sizes[i].pods == 0 {
		n.sizes = slices.Delete(n.sizes, i, i+1)
	}
}

// gaps is what a NUMA node has to give: the three largest numbers of idle CPUs in L3 domains that are partly in use, and
// how many domains are entirely idle.
type gaps struct {
	largest [3]int
	whole   int
}

// with returns the gaps once a domain's idle CPUs went from before to after. wasWhole says that it was entirely idle. The
// third largest is lost where a larger one goes: two are enough to judge by.
func (g gaps) with(before, after int, wasWhole bool) gaps {
	if wasWhole {
		g.whole--
	} else {
		for i, v := range g.largest {
			if v == before {
				copy(g.largest[i:], g.largest[i+1:])
				g.largest[2] = 0
				break
			}
		}
	}
	g.add(after)
	return g
}

func (g *gaps) add(v int) {
	for i := range g.largest {
		if v > g.largest[i] {
			v, g.largest[i] = g.largest[i], v
		}
	}
}

// breaks is how many idle L3 domains of l3 CPUs, beyond those it fills, a pod would break into here or lack: 0, 1 or 2.
func (g gaps) breaks(cpus, l3 int) int {
	fills, rest := cpus/l3, cpus%l3
	switch {
	case rest == 0:
		return boolInt(g.whole < fills)
	case fills == 0:
		return boolInt(g.largest[0] < rest)
	case fills == 1 && g.largest[0]+g.largest[1] >= cpus:
		return 0
	case g.whole >= fills && g.largest[0] >= rest:
		return 1
	}
	return 2
}

// fits is the solver's scratch for Fit: the gaps of one NUMA node at a time, and the results for small L3 domains.
type fits struct {
	scale fitScale
	numa  int // -1: none yet
	gaps  gaps
	stamp uint32
	known [(fitsKnown + 1) * (fitsKnown + 1) * 2]fitsEntry
}

type fitsEntry struct {
	stamp  uint32
	putOff uint16
}

// fitsKnown is the largest L3 domain, in CPUs, for which results are remembered.
const fitsKnown = 32

func (f *fits) begin(domains int) {
	f.scale, f.numa = newFitScale(domains), -1
}

// fit is the Fit of taking t CPUs from an L3 domain.
func (s *solver) fit(c, t int) int {
	idle := int(s.n.cellIdle[c])
	after := max(0, idle-t)
	out := 0
	if after > 0 {
		out = s.fits.scale.open
	}
	if len(s.n.sizes) == 0 || s.fits.scale.putOffMax == 0 {
		return out
	}
	if numa := s.n.layout.cells[c].numa; numa != s.fits.numa {
		s.enterNUMA(numa)
	}
	whole := s.n.cellIsIdle(c)
	if idle > fitsKnown {
		return out + s.putOff(idle, after, whole)
	}
	e := &s.fits.known[(idle*(fitsKnown+1)+after)*2+boolInt(whole)]
	if e.stamp != s.fits.stamp {
		*e = fitsEntry{s.fits.stamp, uint16(s.putOff(idle, after, whole))}
	}
	return out + int(e.putOff)
}

func (s *solver) enterNUMA(i int) {
	f := &s.fits
	f.numa, f.gaps = i, gaps{}
	if f.stamp++; f.stamp == 0 { // wrapped around: old entries would look new
		clear(f.known[:])
		f.stamp = 1
	}
	m := &s.n.layout.numas[i]
	for c := m.cells.lo; c < m.cells.hi; c++ {
		if s.n.cellIsIdle(c) {
			f.gaps.whole++
		} else {
			f.gaps.add(int(s.n.cellIdle[c]))
		}
	}
}

// putOff sums, over the sizes of pods on the node, the idle L3 domains that one more would break into when a domain's
// idle CPUs have gone from before to after. What a choice makes easier does not count against it.
func (s *solver) putOff(before, after int, whole bool) int {
	now, then := s.fits.gaps, s.fits.gaps.with(before, after, whole)
	l3 := s.n.layout.numas[s.fits.numa].l3Max
	sum := 0
	for _, size := range s.n.sizes[:min(len(s.n.sizes), sizesMax)] {
		sum += then.breaks(size.cpus, l3) - now.breaks(size.cpus, l3)
	}
	return min(max(sum, 0), s.fits.scale.putOffMax)
}
