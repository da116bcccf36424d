package evict

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// domainsMax is the number of domains of the network that are searched for a claimant that must be in
// one of them.
const domainsMax = 8

// domain is a domain in which a claimant would fit if all pods left that may be evicted.
type domain struct {
	place.Domain
	missing int64 // how many pods of the minimum do not fit now
}

// anywhere reports whether a claimant must be in one domain, and it is open in which: then counting
// places on all nodes tells nothing.
func anywhere(near *place.Near) bool { return near != nil && near.Hard && near.In == 0 }

// findNear is Find for a claimant that must be in one domain of the network. Victims are sought in one
// domain after another, those first in which most of the claimant fits now; the cheapest plan counts,
// and among equal ones the domain of the lowest tier.
func (f *Search) findNear(c Claim) *Plan {
	p, domains := f.domains(c)
	if domains == nil {
		return p
	}
	var best *Plan
	tier, exact := 0, len(domains) <= domainsMax
	for _, d := range domains[:min(len(domains), domainsMax)] {
		near := *c.Near
		near.In = d.Index + 1
		one := c
		one.Near = &near
		within := make([]bool, len(f.nodes.list))
		for _, n := range d.Nodes {
			within[f.nodes.nodeOf[n]] = true
		}
		p := f.find(one, within)
		exact = exact && p.Exact
		if best == nil || p.Refusal == nil && (best.Refusal != nil ||
			cmp.Or(p.Cost.Compare(best.Cost), cmp.Compare(d.Tier, tier)) < 0) {
			best, tier = p, d.Tier
		}
	}
	if best.Refusal != nil {
		return best
	}
	return f.dropNeedless(c, best, exact)
}

// dropNeedless returns the plan without the victims that the claimant does not need, because it fits
// into another domain without them. exact means that there is no cheaper plan.
func (f *Search) dropNeedless(c Claim, best *Plan, exact bool) *Plan {
	defer f.end()
	p, open := f.prepare(c)
	if !open {
		return best
	}
	f.claim.domains = f.nodes.placer.Domains(c.Near)
	f.restore(best.chosen)
	f.prune()
	p.Exact = exact
	f.report(p, f.nodes.place(f.claim.gang))
	return p
}

// inOneDomain reports whether one of the domains has as many places as the claimant needs at least.
func (f *Search) inOneDomain() bool {
	for i := range f.claim.domains {
		if f.missing(&f.claim.domains[i], nil) <= 0 {
			return true
		}
	}
	return false
}

// missing returns how many pods of the class that lacks most do not fit into a domain, as it is or,
// if r is not nil, when all have left that may be evicted.
func (f *Search) missing(d *place.Domain, r *rights) (most int64) {
	for _, class := range f.nodes.classes {
		fit, places := class.fit, int64(0)
		if r != nil {
			fit = f.placesOf(r, class.class).fit
		}
		for _, n := range d.Nodes {
			places += int64(fit[f.nodes.nodeOf[n]])
		}
		most = max(most, class.wanted-places)
	}
	return most
}

// domains returns the domains to search, the best first. If there are none, the plan is final.
func (f *Search) domains(c Claim) (*Plan, []domain) {
	defer f.end()
	p, open := f.prepare(c)
	if !open {
		return p, nil
	}
	var list []domain
	for _, d := range f.nodes.placer.Domains(c.Near) {
		if f.missing(&d, f.allowed) == 0 {
			list = append(list, domain{Domain: d, missing: f.missing(&d, nil)})
		}
	}
	slices.SortFunc(list, func(a, b domain) int {
		return cmp.Or(cmp.Compare(a.missing, b.missing), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Index, b.Index))
	})
	if len(list) == 0 {
		p.Refusal = &Refusal{Code: NotFound}
	}
	return p, list
}
