package place

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// target is where pods may go while a gang with Near is placed.
type target struct {
	active bool // otherwise to all nodes
	domain int32
	packed bool // to as few of the domains below it as possible
}

// placeNear is Place for gangs that are to be near each other in the network.
//
// Of the domains that are allowed, the lowest with room gets the gang; see better. If all pods are
// of one class of the fast path, then the first domain tried has room, because counting is exact.
// Otherwise placement is tried in one domain after another.
func (p *Placer) placeNear(g Gang) Decision {
	// 1. Check that the minimum of each demand fits alone, on all nodes.
	if short := p.prepare(g); short != nil {
		if never := p.neverNear(g); never != nil {
			short = never // it would not fit if all nodes were free
		}
		return Decision{Shortage: short}
	}
	p.prepareNear(g.Near)
	defer func() { p.target = target{} }()
	// 2. Place the minimum in a domain or, if that is not a must, in as few as possible.
	most := 0 // of the minimum, in an attempt that failed
	try := func(i int32) bool {
		ok := p.minimumIn(g, i)
		if !ok {
			most = max(most, len(p.log))
			p.rollback()
		}
		return ok
	}
	home, found := p.gather(everywhere, g.Near, p.fitting(), g.MinMember, try)
	if !found.placed && g.Near.Hard {
		return Decision{Shortage: p.notNear(g, found, most)}
	}
	if !found.placed && !try(everywhere) {
		p.target, g.Near = target{}, nil
		return p.Place(g)
	}
	// 3. Place as many of the remaining pods as fit and are wanted, as near as possible.
	limit := p.limit(g.Near, home)
	p.sort(byNumber)
	for i := range p.demands {
		p.fillUp(&p.demands[i], home, limit, g.Most)
	}
	return p.decide(g)
}

// fillUp places as many pods of a demand as fit and are wanted: in the domain home first, then in those
// above it up to limit. most bounds the number of pods of the gang, as in Gang.Most.
func (p *Placer) fillUp(d *demand, home, limit int32, most int) {
	n := d.Count - d.placed
	if most > 0 {
		n = min(n, most-len(p.log))
	}
	for at := home; n > 0; at = p.domains.parent(at) {
		before := d.placed
		p.target = target{active: true, domain: at, packed: true}
		p.fill(d, p.o.Strategy, n)
		if n -= d.placed - before; at == limit {
			return
		}
	}
}

// neverNear returns a shortage if no domain would have room for a gang if nothing ran there.
func (p *Placer) neverNear(g Gang) *Shortage {
	if !g.Near.Hard {
		return nil
	}
	p.demands = p.demands[:0]
	for i, d := range g.Demands {
		p.demands = append(p.demands, demand{Demand: d, number: i})
	}
	p.prepareNear(g.Near)
	_, found := p.gather(everywhere, g.Near, p.fitting(), g.MinMember, func(int32) bool { return false })
	if s := p.notNear(g, found, 0); s.Domain.Never(s.Wanted) {
		return s
	}
	return nil
}

// prepareNear brings the domains up to date, and notes where other pods of the gang are.
func (p *Placer) prepareNear(near *Near) {
	if p.domains == nil || p.domains.tree != p.o.network() || p.domains.members != p.s.members {
		p.domains = newDomains(p.s, p.o.network())
	}
	p.setUsed(near.On)
}

// setUsed notes where other pods are.
func (p *Placer) setUsed(on []string) {
	p.used, p.usedOutside = p.used[:0], false
	for _, name := range on {
		n, exists := p.s.byName[name]
		if exists && p.domains.rank[n] >= 0 {
			p.used = append(p.used, p.domains.rank[n])
		}
		p.usedOutside = p.usedOutside || exists && p.domains.rank[n] < 0
	}
	slices.Sort(p.used)
}

// gathered says what gather has found.
type gathered struct {
	placed  bool
	why     *NoDomain // set if no domain is allowed for a reason of its own
	allowed int       // number of domains that are allowed
	best    room      // the one with room for most pods
}

// gather calls place with one domain after another inside outer that is allowed and may have room, the
// best first, until place returns true, and returns that domain. If there is none, it returns everywhere.
func (p *Placer) gather(outer int32, near *Near, list []fitting, minMember int, place func(int32) bool) (int32, gathered) {
	var out gathered
	if near.Hard {
		highest, known := near.highest(p.o.network())
		if !known {
			out.why = &NoDomain{Unknown: true}
			return everywhere, out
		}
		if anchor, anchored := p.domains.common(p.s, near.On); anchored && (anchor == everywhere || p.domains.tree.Domains[anchor].Tier > highest) {
			out.why = &NoDomain{Apart: true}
			return everywhere, out
		}
	}
	var fit []room
	for i := range p.allowed(near) {
		if !p.domains.contains(outer, i) {
			continue
		}
		r := p.room(i, list, minMember)
		out.allowed++
		if out.allowed == 1 || r.pods > out.best.pods {
			out.best = r
		}
		if r.fits {
			fit = append(fit, r)
		}
	}
	slices.SortFunc(fit, func(a, b room) int { return p.better(&a, &b, list) })
	for _, r := range fit {
		if place(r.domain) {
			out.placed = true
			return r.domain, out
		}
	}
	return everywhere, out
}

// limit returns the highest domain above home in which pods of the gang may be.
func (p *Placer) limit(near *Near, home int32) int32 {
	if !near.Hard {
		return everywhere
	}
	highest, _ := near.highest(p.o.network())
	for home != everywhere && near.In == 0 {
		above := p.domains.parent(home)
		if above == everywhere || p.domains.tree.Domains[above].Tier > highest {
			break
		}
		home = above
	}
	return home
}

// minimumIn places the gang's minimum in a domain: in as few of the domains below it as possible, or
// else anyhow. The caller rolls back if it fails.
func (p *Placer) minimumIn(g Gang, i int32) bool {
	p.target = target{active: true, domain: i, packed: true}
	if p.minimum(g, p.attempts()[0]) == nil {
		return true
	}
	if !p.mixed() && p.demands[0].Class.Pins == nil {
		return false // counting is exact
	}
	p.target.packed = false
	for _, a := range p.attempts() {
		p.rollback()
		if p.minimum(g, a) == nil {
			return true
		}
	}
	return false
}

// fillTarget places up to k pods of the demand on the nodes of the target.
func (p *Placer) fillTarget(d *demand, strategy Strategy, k int) {
	x := p.indexes.get(d.Class, strategy)
	switch {
	case p.target.packed:
		p.pack(d, x, p.target.domain, k)
	case p.target.domain == everywhere:
		p.fillFrom(x, d, k)
	default:
		s := p.domains.list[p.target.domain]
		p.fillAmong(d, x, p.domains.order[s.from:s.to], k)
	}
}

// part is one of the domains directly below a domain, or the nodes that are in none of them.
type part struct {
	domain int32 // or everywhere: nodes
	nodes  []int32
	places int64
	used   bool // pods of the gang are there already
}

// pack places up to k pods of the demand in as few of the parts of a domain as possible: as long as
// none has room for all, the one with most room is filled; what is left goes where least room is
// left over. x must be up to date for the nodes of the domain. It returns how many were placed.
func (p *Placer) pack(d *demand, x *index, i int32, k int) (placed int) {
	parts := p.parts(x, i)
	slices.SortStableFunc(parts, func(a, b part) int {
		if a.used != b.used {
			if a.used {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.places, a.places)
	})
	for len(parts) > 0 && placed < k {
		at := 0
		if !parts[0].used {
			for at+1 < len(parts) && parts[at+1].places >= int64(k-placed) {
				at++
			}
			for at > 0 && parts[at-1].places == parts[at].places {
				at-- // the first of equal ones
			}
		}
		q := parts[at]
		parts = slices.Delete(parts, at, at+1)
		if q.places == 0 {
			continue
		}
		if q.domain == everywhere {
			placed += p.fillAmong(d, x, q.nodes, k-placed)
		} else {
			placed += p.pack(d, x, q.domain, k-placed)
		}
	}
	return placed
}

// parts returns the parts of a domain with room for pods of an index's class.
func (p *Placer) parts(x *index, i int32) []part {
	v, domains := p.domains, p.o.network().Domains
	var list []part
	add := func(domain int32, own, all []int32, used bool) {
		q := part{domain: domain, nodes: own, used: used}
		for _, n := range all {
			q.places += int64(x.fit[n])
		}
		list = append(list, q)
	}
	first, end := int32(0), int32(len(v.list))
	if i == everywhere {
		add(everywhere, v.outside, v.outside, p.usedOutside)
	} else {
		s := v.list[i]
		first, end = i+1, int32(domains[i].End)
		if s.own > s.from {
			own := v.order[s.from:s.own]
			add(everywhere, own, own, p.uses(s.from, s.own))
		}
	}
	for k := first; k < end; k = int32(domains[k].End) {
		s := v.list[k]
		add(k, nil, v.order[s.from:s.to], p.uses(s.from, s.to))
	}
	return list
}

// uses reports whether other pods of the gang are on one of these nodes, given as ranks.
func (p *Placer) uses(from, to int32) bool {
	at, _ := slices.BinarySearch(p.used, from)
	return at < len(p.used) && p.used[at] < to
}

// fillAmong places up to k pods of the demand on some nodes, for which x must be up to date, and
// returns how many were placed.
func (p *Placer) fillAmong(d *demand, x *index, nodes []int32, k int) int {
	before := d.placed
	p.local.focus(x, nodes)
	p.fillFrom(&p.local, d, k)
	return d.placed - before
}

// focus makes l the index of x's class on some nodes only. The nodes must be up to date in x. The
// index is valid as long as only its own method place changes these nodes.
func (l *index) focus(x *index, nodes []int32) {
	for _, e := range l.heap {
		l.pos[e.node] = -1
	}
	for len(l.pos) < len(x.s.nodes) {
		l.pos, l.fit = append(l.pos, -1), append(l.fit, 0)
	}
	*l = index{s: x.s, class: x.class, strategy: x.strategy, scorer: x.scorer, static: x.static,
		heap: l.heap[:0], pos: l.pos, fit: l.fit}
	for _, n := range nodes {
		l.fit[n] = x.fit[n]
		if l.fit[n] > 0 {
			l.capacity += int64(l.fit[n])
			l.pos[n] = int32(len(l.heap))
			l.heap = append(l.heap, entry{l.key(n), n})
		}
	}
	l.order()
}

// NoDomain says why no domain of the network has room for a gang.
type NoDomain struct {
	// Tier is the highest tier that is allowed: "tier 2", "tier rack", or empty for any.
	Tier string
	// Unknown means that no domain has the name of the tier, and Apart that the other pods of the gang
	// are not in one domain.
	Unknown, Apart bool
	// Domains is the number of domains that are allowed. Best is the one with room for most pods, and
	// Largest the number of pods for which any of them would have room if nothing ran in it.
	Domains int
	Best    string
	Largest int
}

// notNear explains why a gang that fits on all nodes does not fit into one domain. most is the
// number of pods that were placed in an attempt that failed.
func (p *Placer) notNear(g Gang, tried gathered, most int) *Shortage {
	near, why := g.Near, tried.why
	if why == nil {
		why = &NoDomain{Domains: tried.allowed}
		if tried.allowed > 0 {
			why.Best = p.domains.tree.Domains[tried.best.domain].Name
		}
	}
	why.Tier = near.tier()
	wanted := 0
	for i := range p.demands {
		wanted += p.demands[i].Min
	}
	wanted = max(wanted, g.MinMember)
	s := &Shortage{Wanted: wanted, Fit: min(max(tried.best.pods, most), wanted-1), Domain: why}
	if tried.best.pods >= wanted { // counting says that it fits, and trying that it does not
		s.Fit = min(most, wanted-1)
	}
	if tried.allowed > 0 {
		why.Largest = p.largest(near, wanted)
	}
	return s
}

// tier names the highest tier that is allowed: "tier 2", "tier rack", or nothing for any.
func (n *Near) tier() string {
	switch {
	case n.TierName != "":
		return "tier " + n.TierName
	case n.HighestTier < AnyTier:
		return "tier " + strconv.Itoa(n.HighestTier)
	}
	return ""
}

// largest returns for how many pods of a gang's minimum any allowed domain would have room if nothing
// ran in it.
func (p *Placer) largest(near *Near, wanted int) (most int) {
	list := p.fitting()
	for k := range list {
		x := p.indexes.get(list[k].class, p.o.Strategy)
		empty := make([]int32, len(p.s.nodes))
		for i := range empty {
			empty[i] = x.empty(int32(i))
		}
		list[k].sums = p.domains.sums(empty)
	}
	for i := range p.allowed(near) {
		most = max(most, p.room(i, list, wanted).pods)
	}
	return most
}

// empty returns how many pods of the class a node would take if nothing ran on it.
func (x *index) empty(node int32) int32 {
	if x.static.refused[node] != passes {
		return 0
	}
	n := int64(1 << 30)
	for _, need := range x.class.needs {
		n = min(n, x.s.nodes[node].Allocatable.At(need.dim)/need.amount)
	}
	if len(x.class.Ports) > 0 {
		n = min(n, 1)
	}
	return int32(n)
}

// stable describes why no domain has room, without figures that change while the cause stays the
// same.
func (n *NoDomain) stable(wanted int) string {
	below := ""
	if n.Tier != "" {
		below = " of " + n.Tier + " or below"
	}
	switch {
	case n.Unknown:
		return fmt.Sprintf("no part of the network has %s", n.Tier)
	case n.Apart:
		return fmt.Sprintf("its other pods are not in one domain of the network%s", below)
	case n.Domains == 0:
		return fmt.Sprintf("the network has no domain%s", below)
	case n.Largest < wanted:
		return fmt.Sprintf("no domain of the network%s is large enough for %s", below, pods(wanted))
	}
	return fmt.Sprintf("no domain of the network%s has room for %s", below, pods(wanted))
}

// detail describes it in figures.
func (n *NoDomain) detail(fit, wanted int) string {
	if n.Domains == 0 {
		return n.stable(wanted)
	}
	s := fmt.Sprintf("the best of %d domains, %s, has room for %d of %s", n.Domains, n.Best, fit, pods(wanted))
	if n.Domains == 1 {
		s = fmt.Sprintf("%s has room for %d of %s", n.Best, fit, pods(wanted))
	}
	if n.Largest < wanted {
		s += fmt.Sprintf(", and none would have room for more than %d if nothing ran there", n.Largest)
	}
	return s
}

// counted describes it with and without figures.
func (n *NoDomain) counted(fit, wanted int) string {
	if n.Domains == 0 {
		return n.stable(wanted)
	}
	return n.stable(wanted) + ": " + n.detail(fit, wanted)
}

// Never reports whether nothing that ends or is evicted makes room.
func (n *NoDomain) Never(wanted int) bool {
	return n.Unknown || n.Apart || n.Domains == 0 || n.Largest < wanted
}
