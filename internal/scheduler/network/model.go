package network

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
)

// Model is the set of HyperNodes and nodes that a Tree is made from. It is not safe for concurrent
// use.
type Model struct {
	labels []string // the label of tier 1, of tier 2, and so on
	hypers map[string]*hyper
	nodes  map[string]map[string]string // labels, by name
	tree   *Tree                        // nil if anything has changed
}

// hyper is a HyperNode with its selectors compiled.
type hyper struct {
	name     string
	labels   map[string]string
	tier     int
	tierName string
	nodes    selection
	hypers   selection
	faults   []Fault         // of selectors
	matches  map[string]bool // nodes that a pattern of nodes matches
}

// selection selects names.
type selection struct {
	exact    []string
	patterns []pattern
}

// pattern selects by name or labels.
type pattern struct {
	text   string
	regex  *regexp.Regexp
	labels labels.Selector
	hypers map[string]bool // if it selects HyperNodes: those that it matches
}

// New returns an empty model. tierLabels are the labels that divide the nodes that no HyperNode
// contains, the lowest tier first. The first is that of tier 1.
func New(tierLabels []string) *Model {
	return &Model{labels: tierLabels, hypers: map[string]*hyper{}, nodes: map[string]map[string]string{}}
}

// SetNode adds a node, or changes its labels, and reports whether the tree may have changed. The
// labels must not be modified afterwards.
func (m *Model) SetNode(name string, l map[string]string) bool {
	if old, known := m.nodes[name]; known && maps.Equal(old, l) {
		return false
	}
	m.nodes[name] = l
	for _, h := range m.hypers {
		h.match(name, l)
	}
	return m.changed()
}

// RemoveNode removes a node, and reports whether the tree may have changed.
func (m *Model) RemoveNode(name string) bool {
	if _, known := m.nodes[name]; !known {
		return false
	}
	delete(m.nodes, name)
	for _, h := range m.hypers {
		delete(h.matches, name)
	}
	return m.changed()
}

// changed makes the tree outdated. Without domains, nodes do not matter.
func (m *Model) changed() bool {
	if len(m.hypers) == 0 && len(m.labels) == 0 {
		return false
	}
	m.tree = nil
	return true
}

// SetHyperNode adds or replaces a HyperNode, and reports whether the tree may have changed.
func (m *Model) SetHyperNode(o *hypernodev1alpha1.HyperNode) bool {
	h := compile(o)
	if old := m.hypers[o.Name]; old != nil && old.same(h) {
		return false
	}
	for name, l := range m.nodes {
		h.match(name, l)
	}
	m.hypers[o.Name] = h
	for _, other := range m.hypers {
		h.matchHyper(other)
		other.matchHyper(h)
	}
	m.tree = nil
	return true
}

// RemoveHyperNode removes a HyperNode, and reports whether the tree may have changed.
func (m *Model) RemoveHyperNode(name string) bool {
	if m.hypers[name] == nil {
		return false
	}
	delete(m.hypers, name)
	for _, h := range m.hypers {
		for i := range h.hypers.patterns {
			delete(h.hypers.patterns[i].hypers, name)
		}
	}
	m.tree = nil
	return true
}

// compile prepares a HyperNode's selectors. A selector that is not valid selects nothing.
func compile(o *hypernodev1alpha1.HyperNode) *hyper {
	h := &hyper{name: o.Name, labels: o.Labels, tier: o.Spec.Tier, tierName: o.Spec.TierName, matches: map[string]bool{}}
	for i := range o.Spec.Members {
		member := &o.Spec.Members[i]
		into := &h.nodes
		switch member.Type {
		case hypernodev1alpha1.MemberNode:
		case hypernodev1alpha1.MemberHyperNode:
			into = &h.hypers
		default:
			h.fault(i, InvalidSelector, fmt.Sprintf("type %q is neither Node nor HyperNode", member.Type))
			continue
		}
		if why := into.add(&member.Selector); why != "" {
			h.fault(i, InvalidSelector, why)
		}
	}
	return h
}

func (h *hyper) fault(member int, reason, message string) {
	h.faults = append(h.faults, Fault{reason, fmt.Sprintf("spec.members[%d]: %s", member, message)})
}

// add adds what a selector selects, or returns why it is not valid.
func (s *selection) add(selector *hypernodev1alpha1.MemberSelector) (why string) {
	p := pattern{}
	switch {
	case selector.ExactMatch != nil && selector.ExactMatch.Name != "":
		s.exact = append(s.exact, selector.ExactMatch.Name)
		return ""
	case selector.RegexMatch != nil && selector.RegexMatch.Pattern != "":
		regex, err := compilePattern(selector.RegexMatch.Pattern)
		if err != nil {
			return err.Error()
		}
		p.text, p.regex = "names like "+selector.RegexMatch.Pattern, regex
	case selector.LabelMatch != nil:
		list, err := metav1.LabelSelectorAsSelector(selector.LabelMatch)
		if err != nil {
			return err.Error()
		}
		p.text, p.labels = "the labels "+list.String(), list
	default:
		return "selects nothing"
	}
	s.patterns = append(s.patterns, p)
	return ""
}

func (p *pattern) matches(name string, l map[string]string) bool {
	if p.regex != nil {
		return p.regex.MatchString(name)
	}
	return p.labels.Matches(labels.Set(l))
}

// match records whether a pattern of the HyperNode matches a node.
func (h *hyper) match(name string, l map[string]string) {
	delete(h.matches, name)
	for i := range h.nodes.patterns {
		if h.nodes.patterns[i].matches(name, l) {
			h.matches[name] = true
			return
		}
	}
}

// matchHyper records which of the HyperNode's patterns match another HyperNode.
func (h *hyper) matchHyper(o *hyper) {
	if h == o {
		return
	}
	for i := range h.hypers.patterns {
		p := &h.hypers.patterns[i]
		if p.hypers == nil {
			p.hypers = map[string]bool{}
		}
		if p.matches(o.name, o.labels) {
			p.hypers[o.name] = true
		} else {
			delete(p.hypers, o.name)
		}
	}
}

func (h *hyper) same(o *hyper) bool {
	return h.tier == o.tier && h.tierName == o.tierName && maps.Equal(h.labels, o.labels) &&
		h.nodes.same(&o.nodes) && h.hypers.same(&o.hypers) && slices.Equal(h.faults, o.faults)
}

func (s *selection) same(o *selection) bool {
	return slices.Equal(s.exact, o.exact) &&
		slices.EqualFunc(s.patterns, o.patterns, func(a, b pattern) bool { return a.text == b.text })
}

// Tree returns the domains. It costs O(nodes + members) after a change, and nothing otherwise.
func (m *Model) Tree() *Tree {
	if m.tree == nil {
		m.tree = m.build()
	}
	return m.tree
}

// builder makes a tree. Its HyperNodes are sorted by tier and name: who comes first has a member
// that several list.
type builder struct {
	*Model
	hypers []*hyper
	drafts map[string]*draft
	faults map[string][]Fault
}

func (m *Model) build() *Tree {
	b := &builder{Model: m, drafts: map[string]*draft{}, faults: map[string][]Fault{}}
	b.hypers = slices.SortedFunc(maps.Values(m.hypers), func(x, y *hyper) int {
		return cmp.Or(cmp.Compare(x.tier, y.tier), cmp.Compare(x.name, y.name))
	})
	all := make([]*draft, 0, len(b.hypers))
	for _, h := range b.hypers {
		d := &draft{name: h.name, tier: h.tier, tierName: h.tierName, hyper: true}
		b.drafts[h.name] = d
		all = append(all, d)
		b.faults[h.name] = slices.Clone(h.faults)
	}
	b.joinHyperNodes()
	taken := b.joinNodes()
	b.nameTiers()
	all = append(all, b.byLabels(taken)...)
	t := assemble(all)
	maps.DeleteFunc(b.faults, func(_ string, f []Fault) bool { return len(f) == 0 })
	t.Faults = b.faults
	return t
}

func (b *builder) fault(h *hyper, reason, format string, args ...any) {
	b.faults[h.name] = append(b.faults[h.name], Fault{reason, fmt.Sprintf(format, args...)})
}

// joinHyperNodes gives every HyperNode its parent.
func (b *builder) joinHyperNodes() {
	claims := make([][]string, len(b.hypers))
	for i, h := range b.hypers {
		listed := map[string]bool{}
		join := func(name string) {
			d := b.drafts[name]
			switch {
			case listed[name]:
				return
			case d == nil:
				b.fault(h, UnknownMember, "there is no HyperNode %q", name)
			case d.tier >= h.tier:
				b.fault(h, TierNotBelow, "HyperNode %q has tier %d, which is not below %d", name, d.tier, h.tier)
			default:
				claims[i] = append(claims[i], name)
				if d.parent == nil {
					d.parent = b.drafts[h.name]
				}
			}
			listed[name] = true
		}
		for _, name := range h.hypers.exact {
			join(name)
		}
		for k := range h.hypers.patterns {
			p := &h.hypers.patterns[k]
			for _, name := range slices.Sorted(maps.Keys(p.hypers)) {
				join(name)
			}
			if len(p.hypers) == 0 {
				b.fault(h, UnknownMember, "no HyperNode has %s", p.text)
			}
		}
	}
	// All parents are known now.
	for i, h := range b.hypers {
		for _, name := range claims[i] {
			if parent := b.drafts[name].parent; !parent.isBelow(b.drafts[h.name]) {
				b.fault(h, MemberTaken, "HyperNode %q belongs to HyperNode %q already", name, parent.name)
			}
		}
	}
}

// joinNodes puts the nodes into their domains, and returns those that are in one.
func (b *builder) joinNodes() map[string]*draft {
	in := map[string]*draft{}
	for _, h := range b.hypers {
		d := b.drafts[h.name]
		join := func(name string) {
			switch first := in[name]; {
			case first == nil:
				in[name] = d
				d.nodes = append(d.nodes, name)
			case !first.isBelow(d):
				b.fault(h, MemberTaken, "node %q belongs to HyperNode %q already", name, first.name)
			}
		}
		for _, name := range h.nodes.exact {
			if _, exists := b.nodes[name]; !exists {
				b.fault(h, UnknownMember, "there is no node %q", name)
				continue
			}
			join(name)
		}
		for _, name := range slices.Sorted(maps.Keys(h.matches)) {
			join(name)
		}
		if len(h.nodes.patterns) > 0 && len(h.matches) == 0 {
			texts := make([]string, len(h.nodes.patterns))
			for i := range h.nodes.patterns {
				texts[i] = h.nodes.patterns[i].text
			}
			b.fault(h, UnknownMember, "no node has %s", strings.Join(texts[:min(len(texts), faultsMax)], " or "))
		}
	}
	return in
}

// nameTiers states tier names that several tiers have.
func (b *builder) nameTiers() {
	lowest := map[string]int{}
	for _, h := range b.hypers {
		if h.tierName == "" {
			continue
		}
		least, found := lowest[h.tierName]
		if !found {
			lowest[h.tierName] = h.tier
		} else if h.tier > least {
			b.fault(h, AmbiguousTier, "the tier name %q means tier %d, which another HyperNode of that tier name has",
				h.tierName, least)
		}
	}
}

// byLabels divides the nodes that are in no domain by their labels.
func (b *builder) byLabels(taken map[string]*draft) (all []*draft) {
	if len(b.labels) == 0 {
		return nil
	}
	drafts := map[string]*draft{} // by tiers and values, from the top
	for name, l := range b.nodes {
		if taken[name] != nil {
			continue
		}
		path, key, parent := "", "", (*draft)(nil)
		for i, label := range slices.Backward(b.labels) {
			value := l[label]
			if value == "" {
				continue
			}
			if path != "" {
				path += "/"
			}
			path += value
			key += fmt.Sprint(i, "=", value, "/")
			d := drafts[key]
			if d == nil {
				d = &draft{name: path, tier: i + 1, tierName: label, parent: parent}
				drafts[key] = d
				all = append(all, d)
			}
			parent = d
		}
		if parent != nil {
			parent.nodes = append(parent.nodes, name)
		}
	}
	return all
}
