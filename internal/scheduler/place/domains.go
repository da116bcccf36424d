package place

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/network"
)

// Near keeps pods near each other in the network of Options.Network.
type Near struct {
	// Hard means that the pods must be in one domain. Otherwise they are in as few domains, of as low
	// tiers, as possible.
	Hard bool
	// HighestTier is the highest tier that the domain of Hard may have. TierName, if set, names that
	// tier instead.
	HighestTier int
	TierName    string
	// On are the nodes of other pods that must be in the same domain.
	On []string
	// In, if it is not 0, is the only domain that Hard allows: its index in Tree.Domains, plus 1.
	In int
}

// AnyTier is a HighestTier that allows all tiers.
const AnyTier = math.MaxInt

// domains are the domains of a tree over the nodes of a snapshot. The nodes of a domain, and of
// those below it, are contiguous in order:
//
//	domain    hall ─────────────────────────────
//	          │      rack a ─────┬ rack b ───────
//	order     n7     n1   n4   n5  n2   n3   n9       n7 is in the hall and in no rack
//	          from   own                         to   of the hall
type domains struct {
	tree    *network.Tree
	members int64 // of the snapshot, when this was made
	list    []span
	order   []int32 // nodes
	rank    []int32 // by node: its position in order, or -1
	in      []int32 // by node: the domain that it is directly in, or -1
	outside []int32 // nodes that are in no domain
}

// span is the part of domains.order that belongs to one domain.
type span struct{ from, own, to int32 }

// everywhere is the number of the domain that contains all nodes.
const everywhere = int32(-1)

func newDomains(s *Snapshot, tree *network.Tree) *domains {
	d := &domains{tree: tree, members: s.members, rank: make([]int32, len(s.nodes)), in: make([]int32, len(s.nodes))}
	for i := range d.rank {
		d.rank[i], d.in[i] = -1, -1
	}
	d.list = make([]span, len(tree.Domains))
	d.add(s, 0, len(tree.Domains))
	for i := range s.nodes {
		if s.nodes[i].Name != "" && d.rank[i] < 0 {
			d.outside = append(d.outside, int32(i))
		}
	}
	return d
}

// add appends the nodes of the domains [i, end), which are siblings and what is below them.
func (d *domains) add(s *Snapshot, i, end int) {
	for i < end {
		from := int32(len(d.order))
		for _, name := range d.tree.Domains[i].Nodes {
			if n, found := s.byName[name]; found && d.rank[n] < 0 {
				d.rank[n], d.in[n] = int32(len(d.order)), int32(i)
				d.order = append(d.order, n)
			}
		}
		own := int32(len(d.order))
		d.add(s, i+1, d.tree.Domains[i].End)
		d.list[i] = span{from, own, int32(len(d.order))}
		i = d.tree.Domains[i].End
	}
}

// contains reports whether domain i is domain k or contains it.
func (d *domains) contains(i, k int32) bool {
	return i == everywhere || k != everywhere && i <= k && int(k) < d.tree.Domains[i].End
}

// parent returns the domain above, or everywhere.
func (d *domains) parent(i int32) int32 { return int32(d.tree.Domains[i].Parent) }

// common returns the lowest domain that contains all these nodes. It is everywhere if there is none.
// found is false if none of the nodes exists.
func (d *domains) common(s *Snapshot, nodes []string) (i int32, found bool) {
	for _, name := range nodes {
		n, exists := s.byName[name]
		if !exists {
			continue
		}
		if !found {
			i, found = d.in[n], true
		}
		for i != everywhere && !d.contains(i, d.in[n]) {
			i = d.parent(i)
		}
	}
	return i, found
}

// Domain is a domain that a gang may be in.
type Domain struct {
	Index, Tier int     // in Tree.Domains
	Nodes       []int32 // indices in the snapshot, also those of the domains below
}

// Domains returns the domains that a gang with Near may be in.
func (p *Placer) Domains(near *Near) (list []Domain) {
	p.prepareNear(near)
	for i := range p.allowed(near) {
		s := p.domains.list[i]
		list = append(list, Domain{Index: int(i), Tier: p.domains.tree.Domains[i].Tier, Nodes: p.domains.order[s.from:s.to]})
	}
	return list
}

// allowed yields the domains that a gang may be in. prepareNear must have been called.
func (p *Placer) allowed(near *Near) iter.Seq[int32] {
	highest := AnyTier
	if near.Hard {
		highest, _ = near.highest(p.o.network())
	}
	anchor, anchored := p.domains.common(p.s, near.On)
	return func(yield func(int32) bool) {
		for i := range int32(len(p.domains.list)) {
			switch {
			case p.domains.tree.Domains[i].Tier > highest, anchored && !p.domains.contains(i, anchor):
			case near.Hard && near.In > 0 && int(i) != near.In-1:
			case !yield(i):
				return
			}
		}
	}
}

// highest returns the highest tier that is allowed. found is false if no domain has the name.
func (n *Near) highest(t *network.Tree) (tier int, found bool) {
	if n.TierName == "" {
		return n.HighestTier, true
	}
	return t.Tier(n.TierName)
}

// fitting is how many pods of one class fit into each domain.
type fitting struct {
	class       *Class
	need, count int     // pods of the gang: the least and all
	sums        []int64 // by domain
}

// fitting returns, for each class of the demands, how many pods fit into each domain.
func (p *Placer) fitting() []fitting {
	var list []fitting
	for i := range p.demands {
		list = p.addFitting(list, &p.demands[i])
	}
	return list
}

func (p *Placer) addFitting(list []fitting, d *demand) []fitting {
	at := slices.IndexFunc(list, func(f fitting) bool { return f.class.key == d.Class.key })
	if at < 0 {
		at = len(list)
		x := p.indexes.get(d.Class, p.o.Strategy)
		list = append(list, fitting{class: d.Class, sums: p.domains.sums(x.fit)})
	}
	list[at].need += d.Min
	list[at].count += d.Count
	return list
}

// sums adds up an amount of each node by domain.
func (d *domains) sums(of []int32) []int64 {
	prefix := make([]int64, len(d.order)+1)
	for k, n := range d.order {
		prefix[k+1] = prefix[k] + int64(of[n])
	}
	out := make([]int64, len(d.list))
	for i, s := range d.list {
		out[i] = prefix[s.to] - prefix[s.from]
	}
	return out
}

// room returns how much of a gang a domain has room for: at most all of it.
type room struct {
	domain int32
	fits   bool  // the minimum may fit: it does, if all pods have one class of the fast path
	whole  bool  // all pods may fit
	pods   int   // of the minimum, at most
	total  int64 // places
}

func (p *Placer) room(i int32, list []fitting, minMember int) room {
	r := room{domain: i, fits: true, whole: true}
	members, need := 0, 0
	for k := range list {
		f := &list[k]
		places := f.sums[i]
		r.fits = r.fits && places >= int64(f.need)
		r.whole = r.whole && places >= int64(f.count)
		need += f.need
		r.pods += int(min(places, int64(f.need)))
		members += int(min(places, int64(f.count)))
		r.total += places
	}
	r.fits = r.fits && members >= minMember
	r.pods = min(members, r.pods+max(0, minMember-need))
	return r
}

// better orders domains that have room for a gang's minimum: the lowest tier first, then those with
// room for all pods, those with the least room to spare, and those below domains with the least, so
// that large domains stay whole. Of domains without room for all, the one with most room is first.
func (p *Placer) better(a, b *room, list []fitting) int {
	t := p.domains.tree.Domains
	x, y := &t[a.domain], &t[b.domain]
	if x.Tier != y.Tier {
		return cmp.Compare(x.Tier, y.Tier)
	}
	if c := spare(a.whole, b.whole, a.total, b.total); c != 0 {
		return c
	}
	for i, k := x.Parent, y.Parent; i != k; i, k = t[i].Parent, t[k].Parent {
		if i < 0 || k < 0 {
			return cmp.Compare(i, k)
		}
		v, w := p.room(int32(i), list, 0), p.room(int32(k), list, 0)
		if c := spare(v.whole, w.whole, v.total, w.total); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(a.domain, b.domain))
}

// spare compares domains with room for all pods, or not, by what is left over.
func spare(whole, otherWhole bool, total, other int64) int {
	switch {
	case whole != otherWhole:
		if whole {
			return -1
		}
		return 1
	case whole:
		return cmp.Compare(total, other)
	}
	return cmp.Compare(other, total)
}
