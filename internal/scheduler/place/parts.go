package place

import (
	"cmp"
	"fmt"
	"slices"
)

// Part is a part of a gang whose pods are placed together or not at all: a partition of a task, or a
// sub-group of a PodGroup.
type Part struct {
	// Kind is what messages call such a part; "partition" by default.
	Kind string
	// Demands are indices in Gang.Demands. A demand belongs to one part at most, and has no Min then.
	Demands []int
	// Size is the number of pods that must be placed at once; if fewer fit, none is placed.
	Size int
	// Near, if set, keeps the pods of the part near each other.
	Near *Near
	// Set is an index in Gang.MinParts.
	Set int
}

// placeParts is Place for gangs with parts.
//
// Parts are placed one after another, each in the smallest domain with room for it. For parts of one
// size and one class that is exact: what one domain has left over is not needed by another part, unless
// a domain of a higher tier is allowed, whose places are counted as a whole.
func (p *Placer) placeParts(g Gang) Decision {
	// 1. Check that the minimum of each demand fits alone, on all nodes.
	if short := p.prepare(g); short != nil {
		return Decision{Shortage: short}
	}
	outer := g.Near
	if outer == nil {
		outer = &Near{}
	}
	p.prepareNear(outer)
	defer func() { p.target = target{} }()
	// 2. Place the minimum of the gang in a domain, or anywhere.
	w := &partsWork{Gang: g, homes: make([]int32, len(g.Parts)), placed: make([]bool, len(g.Parts))}
	try := func(i int32) bool {
		for _, w.large = range [...]bool{false, true} {
			if p.minimumOfParts(w, i) {
				return true
			}
			p.rollback()
			if !w.elastic() {
				break // with large parts it is the same
			}
		}
		return false
	}
	home, found := everywhere, gathered{}
	if g.Near != nil {
		home, found = p.gather(everywhere, g.Near, p.fitting(), g.MinMember, try)
	}
	if !found.placed && (g.Near != nil && g.Near.Hard || !try(everywhere)) {
		return Decision{Shortage: p.partsShortage(w, found)}
	}
	// 3. Place more parts, and more pods of the parts and of the other demands, as far as they fit.
	limit := p.limit(outer, home)
	for k := range g.Parts {
		if size := g.Parts[k].Size; !w.placed[k] && (g.Most <= 0 || len(p.log)+size <= g.Most) {
			p.placePart(w, k, limit)
		}
	}
	p.sort(byNumber)
	for i := range p.demands {
		d := &p.demands[i]
		if k := w.partOf(d.number); k < 0 {
			p.fillUp(d, home, limit, g.Most)
		} else if w.placed[k] {
			p.fillUpPart(w, k, d, limit, g.Most)
		}
	}
	return p.decide(g)
}

// fillUpPart is fillUp for a demand of a part that is placed. The gang may be in the domain limit.
func (p *Placer) fillUpPart(w *partsWork, k int, d *demand, limit int32, most int) {
	home, end := w.homes[k], limit
	if near := w.Parts[k].Near; near != nil && near.Hard {
		if at := p.limit(near, home); p.domains.contains(limit, at) {
			end = at
		}
	}
	p.fillUp(d, home, end, most)
}

// partsWork is a gang with parts while it is placed.
type partsWork struct {
	Gang
	placed []bool
	homes  []int32 // domains of the parts that are placed
	large  bool    // parts get as many pods as the gang lacks for its minimum, not just their Size
	most   []int   // by set: the most parts placed in an attempt that failed
	pods   int     // the most pods placed in one
}

// partOf returns the part that a demand belongs to, or -1.
func (w *partsWork) partOf(demand int) int {
	return slices.IndexFunc(w.Parts, func(part Part) bool { return slices.Contains(part.Demands, demand) })
}

// elastic reports whether a part has more pods than it needs at once.
func (w *partsWork) elastic() bool {
	return slices.ContainsFunc(w.Parts, func(part Part) bool {
		n := 0
		for _, d := range part.Demands {
			n += w.Demands[d].Count
		}
		return n > part.Size
	})
}

// minimumOfParts places the minimum of a gang in a domain. The caller rolls back if it fails.
func (p *Placer) minimumOfParts(w *partsWork, outer int32) bool {
	clear(w.placed)
	count := make([]int, len(w.MinParts))
	place := func(k int) {
		if p.placePart(w, k, outer) {
			w.placed[k] = true
			count[w.Parts[k].Set]++
		}
	}
	// 1. Parts, as many of each set as it needs.
	for k := range w.Parts {
		if set := w.Parts[k].Set; count[set] < w.MinParts[set] {
			place(k)
		}
	}
	// 2. The minimums of demands that belong to no part.
	p.target = target{active: true, domain: outer, packed: true}
	p.sort(scarceFirst)
	enough := true
	for i := range p.demands {
		d := &p.demands[i]
		p.fill(d, p.o.Strategy, d.Min)
		enough = enough && d.placed >= d.Min
	}
	// 3. More parts and pods, up to the gang's minimum.
	for k := range w.Parts {
		if !w.placed[k] && len(p.log) < w.MinMember {
			place(k)
		}
	}
	p.target = target{active: true, domain: outer, packed: true}
	p.sort(smallFirst)
	for i := range p.demands {
		if d := &p.demands[i]; w.partOf(d.number) < 0 {
			p.fill(d, p.o.Strategy, min(d.Count-d.placed, w.MinMember-len(p.log)))
		}
	}
	// 4. More pods of the parts that are placed.
	p.sort(byNumber)
	for i := range p.demands {
		if len(p.log) >= w.MinMember {
			break
		}
		if k := w.partOf(p.demands[i].number); k >= 0 && w.placed[k] {
			p.fillUpPart(w, k, &p.demands[i], outer, w.MinMember)
		}
	}
	if w.pods = max(w.pods, len(p.log)); w.most == nil {
		w.most = make([]int, len(count))
	}
	for set := range count {
		w.most[set] = max(w.most[set], count[set])
		enough = enough && count[set] >= w.MinParts[set]
	}
	return enough && len(p.log) >= w.MinMember
}

// placePart places a part in the smallest domain with room for it, inside another one, and reports
// whether it fits. A domain with room for all pods of the part comes before one that has room for Size.
func (p *Placer) placePart(w *partsWork, k int, outer int32) bool {
	part, mark, pinned := &w.Parts[k], len(p.log), len(p.pins)
	wanted := part.Size
	if w.large {
		wanted = max(wanted, w.MinMember-mark)
	}
	p.sort(byNumber)
	try := func(i int32) bool {
		p.target = target{active: true, domain: i, packed: true}
		for _, number := range part.Demands {
			d := &p.demands[number]
			p.fill(d, p.o.Strategy, min(d.Count-d.placed, wanted-(len(p.log)-mark)))
		}
		if len(p.log)-mark < part.Size {
			p.rollbackTo(mark, pinned)
			return false
		}
		w.placed[k], w.homes[k] = true, i
		return true
	}
	if part.Near == nil {
		return try(outer)
	}
	p.setUsed(part.Near.On)
	list, all := p.fittingOf(part), 0
	for i := range list {
		all += list[i].count
	}
	for _, size := range [...]int{all, part.Size} {
		if _, found := p.gather(outer, part.Near, list, size, try); found.placed {
			return true
		}
		if size == part.Size {
			break
		}
	}
	return !part.Near.Hard && try(outer)
}

// fittingOf is fitting for the demands of a part, which must be sorted by number.
func (p *Placer) fittingOf(part *Part) []fitting {
	var list []fitting
	for _, number := range part.Demands {
		list = p.addFitting(list, &p.demands[number])
	}
	return list
}

// NoParts says why the parts of a gang have no room.
type NoParts struct {
	Kind        string
	Fit, Wanted int // parts
	Size        int // pods of one
	Tier        string
}

// partsShortage explains why a gang with parts does not fit.
func (p *Placer) partsShortage(w *partsWork, found gathered) *Shortage {
	s := &Shortage{Wanted: w.MinMember, Fit: min(w.pods, max(0, w.MinMember-1))}
	hard := w.Near != nil && w.Near.Hard
	if hard && w.most == nil { // by counting, no domain has room
		return p.notNear(w.Gang, found, w.pods)
	}
	for k := range w.Parts {
		part := &w.Parts[k]
		fit, wanted := 0, w.MinParts[part.Set]
		if w.most != nil {
			fit = w.most[part.Set]
		}
		if wanted == 0 || fit >= wanted {
			continue
		}
		s.Parts = &NoParts{Kind: cmp.Or(part.Kind, "partition"), Fit: fit, Wanted: wanted, Size: part.Size}
		if part.Near == nil || !part.Near.Hard {
			return s
		}
		s.Parts.Tier = part.Near.tier()
		one := Gang{Near: part.Near, MinMember: part.Size}
		for _, number := range part.Demands {
			one.Demands = append(one.Demands, w.Demands[number])
		}
		if never := p.neverNear(one); never != nil {
			return never
		}
		return s
	}
	if hard {
		return p.notNear(w.Gang, found, w.pods)
	}
	p.target = target{}
	d := &p.demands[0]
	return p.shortage(p.indexes.get(d.Class, p.o.Strategy), d, s.Wanted, s.Fit, s.Wanted-s.Fit)
}

// stable describes why parts have no room, without figures that change while the cause stays the same.
func (n *NoParts) stable() string {
	where := ""
	if n.Tier != "" {
		where = ", each in one domain of the network of " + n.Tier + " or below"
	}
	return fmt.Sprintf("there is no room for %s of %s%s", n.parts(), pods(n.Size), where)
}

// detail describes it in figures.
func (n *NoParts) detail() string { return fmt.Sprintf("%d of %s fit", n.Fit, n.parts()) }

// parts names the parts that are wanted: "2 partitions".
func (n *NoParts) parts() string {
	if n.Wanted == 1 {
		return "1 " + n.Kind
	}
	return fmt.Sprintf("%d %ss", n.Wanted, n.Kind)
}
