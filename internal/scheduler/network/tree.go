package network

import (
	"slices"
	"strings"
)

// Tree is a forest of domains.
type Tree struct {
	// Domains lists the domains in preorder: a domain is followed by the domains below it. Siblings
	// are sorted by name.
	Domains []Domain
	// Faults lists, by HyperNode, the members that are not counted.
	Faults map[string][]Fault
	tiers  map[string]int // lowest tier, by tier name
	byName map[string]int // index in Domains of the domain of each HyperNode
}

// Domain is a part of the network.
type Domain struct {
	Name     string
	Tier     int
	TierName string
	// Parent is the index of the domain above, or -1.
	Parent int
	// End is the index behind the last domain below this one.
	End int
	// Nodes are the nodes that are in this domain and in none below it, sorted by name.
	Nodes []string
	// Count is the number of nodes in this domain and in those below it.
	Count int
}

// Fault says why a member of a HyperNode is not counted.
type Fault struct {
	Reason  string // a CamelCase word
	Message string
}

// Reasons of faults.
const (
	InvalidSelector = "InvalidSelector"
	UnknownMember   = "UnknownMember"
	TierNotBelow    = "TierNotBelow"
	MemberTaken     = "MemberTaken"
	AmbiguousTier   = "AmbiguousTier"
)

// Tier returns the tier with this name. If several tiers have it, the lowest counts.
func (t *Tree) Tier(name string) (tier int, found bool) {
	tier, found = t.tiers[name]
	return tier, found
}

// HyperNode returns the domain of a HyperNode.
func (t *Tree) HyperNode(name string) (Domain, bool) {
	i, found := t.byName[name]
	if !found {
		return Domain{}, false
	}
	return t.Domains[i], true
}

// faultsMax bounds the faults in a text.
const faultsMax = 8

// Explain returns the reason of the first fault and the messages of all, or nothing.
func Explain(faults []Fault) (reason, message string) {
	if len(faults) == 0 {
		return "", ""
	}
	texts := make([]string, 0, faultsMax+1)
	for _, f := range faults[:min(len(faults), faultsMax)] {
		texts = append(texts, f.Message)
	}
	if more := len(faults) - faultsMax; more > 0 {
		texts = append(texts, "and more like these")
	}
	return faults[0].Reason, strings.Join(texts, "; ")
}

// draft is a domain before it has a place in the tree.
type draft struct {
	name     string
	tier     int
	tierName string
	parent   *draft
	below    []*draft
	nodes    []string
	hyper    bool // it is a HyperNode's
}

// isBelow reports whether d is o or below it.
func (d *draft) isBelow(o *draft) bool {
	for ; d != nil; d = d.parent {
		if d == o {
			return true
		}
	}
	return false
}

// assemble puts drafts into preorder. The roots are those without a parent.
func assemble(drafts []*draft) *Tree {
	t := &Tree{Domains: make([]Domain, 0, len(drafts)), tiers: map[string]int{}, byName: map[string]int{}}
	var roots []*draft
	for _, d := range drafts {
		if d.parent == nil {
			roots = append(roots, d)
		} else {
			d.parent.below = append(d.parent.below, d)
		}
	}
	t.add(roots, -1)
	return t
}

// add appends siblings and what is below them, and returns the number of their nodes.
func (t *Tree) add(siblings []*draft, parent int) (count int) {
	slices.SortFunc(siblings, func(a, b *draft) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return a.tier - b.tier
	})
	for _, d := range siblings {
		i := len(t.Domains)
		slices.Sort(d.nodes)
		t.Domains = append(t.Domains, Domain{
			Name: d.name, Tier: d.tier, TierName: d.tierName, Parent: parent, Nodes: d.nodes,
		})
		if d.hyper {
			t.byName[d.name] = i
		}
		if least, found := t.tiers[d.tierName]; d.tierName != "" && (!found || d.tier < least) {
			t.tiers[d.tierName] = d.tier
		}
		n := len(d.nodes) + t.add(d.below, i)
		t.Domains[i].Count, t.Domains[i].End = n, len(t.Domains)
		count += n
	}
	return count
}
