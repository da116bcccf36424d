package allocate

import "slices"

// A choice matters to the pods that come next. These are not known, but the pods on a node are a
// fair sample of them. Fit therefore counts the sizes of pods on the node of which the NUMA node
// could take one more before the choice, without breaking into another idle L3 domain, and cannot
// after it. For example, Fit keeps a gap of four CPUs beside an idle L3 domain of eight for pods of
// twelve, instead of filling it with three CPUs that fit anywhere.

// podSize is the number of pods on a node that hold this number of CPUs exclusively.
type podSize struct{ cpus, pods int }

// sizesMax bounds the number of sizes that Fit considers on a node; it considers the smallest ones.
const sizesMax = 16

// countSize adds (+1) or removes (-1) a pod from the sizes on the node, which are kept in ascending
// order.
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

// gaps describes the idle CPUs of a NUMA node: the three largest numbers of idle CPUs in L3 domains
// that are partly in use, and the number of entirely idle domains.
type gaps struct {
	largest [3]int
	whole   int
}

// with returns the gaps after a domain's idle CPUs went from before to after. wasWhole means that
// the domain was entirely idle. The third largest number is lost when a larger one is removed; two
// are enough for the decision.
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

// breaks returns how many idle L3 domains of l3 CPUs, beyond those that it fills, a pod would break
// into, or lack: 0, 1 or 2.
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

// fits is the solver's scratch memory for Fit: the gaps of one NUMA node at a time, and cached
// results for small L3 domains.
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

// fitsKnown is the size, in CPUs, of the largest L3 domain for which results are cached.
const fitsKnown = 32

func (f *fits) begin(domains int) {
	f.scale, f.numa = newFitScale(domains), -1
}

// fit returns the Fit of taking t CPUs from an L3 domain.
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

// putOff returns the sum, over the sizes of pods on the node, of the additional idle L3 domains
// that one more pod would break into after a domain's idle CPUs have gone from before to after.
// Sizes that the choice makes easier count as a reduction, but the sum is at least 0 and at most
// putOffMax.
func (s *solver) putOff(before, after int, whole bool) int {
	now, then := s.fits.gaps, s.fits.gaps.with(before, after, whole)
	l3 := s.n.layout.numas[s.fits.numa].l3Max
	sum := 0
	for _, size := range s.n.sizes[:min(len(s.n.sizes), sizesMax)] {
		sum += then.breaks(size.cpus, l3) - now.breaks(size.cpus, l3)
	}
	return min(max(sum, 0), s.fits.scale.putOffMax)
}
