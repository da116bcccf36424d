package network

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
)

// parse makes a HyperNode from the YAML of its spec.
func parse(t *testing.T, name, spec string) *hypernodev1alpha1.HyperNode {
	t.Helper()
	h := &hypernodev1alpha1.HyperNode{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": name}}}
	if err := yaml.UnmarshalStrict([]byte(spec), &h.Spec); err != nil {
		t.Fatal(name, err)
	}
	return h
}

// render writes a tree as text: each domain with its tier, count and own nodes, those below it in
// parentheses.
func render(t *Tree) string {
	var b strings.Builder
	var write func(i, end int)
	write = func(i, end int) {
		for sep := ""; i < end; i, sep = t.Domains[i].End, " " {
			d := &t.Domains[i]
			fmt.Fprintf(&b, "%s%s/%d:%d%v", sep, d.Name, d.Tier, d.Count, d.Nodes)
			if d.End > i+1 {
				b.WriteByte('(')
				write(i+1, d.End)
				b.WriteByte(')')
			}
		}
	}
	write(0, len(t.Domains))
	return b.String()
}

func TestTree(t *testing.T) {
	const (
		nodes = "{type: Node, selector: {regexMatch: {pattern: '^%s'}}}"
		exact = "{type: %s, selector: {exactMatch: {name: %s}}}"
	)
	cases := map[string]struct {
		labels []string
		hypers map[string]string // specs by name
		want   string
		faults string
	}{
		"no HyperNodes": {},
		"members by name, pattern and labels": {
			hypers: map[string]string{
				"a": "{tier: 1, members: [" + fmt.Sprintf(exact, "Node", "n1") + "]}",
				"b": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n[23]$") + "]}",
				"c": "{tier: 1, members: [{type: Node, selector: {labelMatch: {matchLabels: {rack: c}}}}]}",
				"d": "{tier: 2, members: [{type: HyperNode, selector: {regexMatch: {pattern: ^a$}}}, {type: HyperNode, selector: {labelMatch: {matchExpressions: [{key: is, operator: In, values: [b, c]}]}}}]}",
			},
			want: "d/2:5[](a/1:1[n1] b/1:2[n2 n3] c/1:2[n4 n5])",
		},
		"members that do not exist": {
			hypers: map[string]string{
				"a": "{tier: 1, members: [" + fmt.Sprintf(exact, "Node", "n1") + ", " + fmt.Sprintf(exact, "Node", "gone") + ", " + fmt.Sprintf(nodes, "x") + "]}",
				"b": "{tier: 2, members: [" + fmt.Sprintf(exact, "HyperNode", "none") + ", {type: HyperNode, selector: {regexMatch: {pattern: ^z}}}]}",
			},
			want:   "a/1:1[n1] b/2:0[]",
			faults: `a UnknownMember: there is no node "gone"; no node has names like ^x; b UnknownMember: there is no HyperNode "none"; no HyperNode has names like ^z`,
		},
		"a pattern of nodes that matches none": {
			hypers: map[string]string{"a": "{tier: 1, members: [" + fmt.Sprintf(nodes, "x") + "]}"},
			want:   "a/1:0[]",
			faults: "a UnknownMember: no node has names like ^x",
		},
		"a cycle": {
			hypers: map[string]string{
				"a": "{tier: 2, members: [" + fmt.Sprintf(exact, "HyperNode", "b") + "]}",
				"b": "{tier: 1, members: [" + fmt.Sprintf(exact, "HyperNode", "a") + ", " + fmt.Sprintf(exact, "Node", "n1") + "]}",
			},
			want:   "a/2:1[](b/1:1[n1])",
			faults: `b TierNotBelow: HyperNode "a" has tier 2, which is not below 1`,
		},
		"itself": {
			hypers: map[string]string{"a": "{tier: 1, members: [" + fmt.Sprintf(exact, "HyperNode", "a") + "]}"},
			want:   "a/1:0[]",
			faults: `a TierNotBelow: HyperNode "a" has tier 1, which is not below 1`,
		},
		"overlapping nodes": {
			hypers: map[string]string{
				"a": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n[12]$") + "]}",
				"b": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n[23]$") + "]}",
			},
			want:   "a/1:2[n1 n2] b/1:1[n3]",
			faults: `b MemberTaken: node "n2" belongs to HyperNode "a" already`,
		},
		"two parents": {
			hypers: map[string]string{
				"a": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n1") + "]}",
				"b": "{tier: 2, members: [" + fmt.Sprintf(exact, "HyperNode", "a") + "]}",
				"c": "{tier: 2, members: [" + fmt.Sprintf(exact, "HyperNode", "a") + ", " + fmt.Sprintf(nodes, "n2") + "]}",
			},
			want:   "b/2:1[](a/1:1[n1]) c/2:1[n2]",
			faults: `c MemberTaken: HyperNode "a" belongs to HyperNode "b" already`,
		},
		"a node, and the HyperNode that it is in": {
			hypers: map[string]string{
				"a": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n1") + "]}",
				"b": "{tier: 2, members: [" + fmt.Sprintf(exact, "HyperNode", "a") + ", " + fmt.Sprintf(nodes, "n[12]$") + "]}",
			},
			want: "b/2:2[n2](a/1:1[n1])",
		},
		"a HyperNode, and the one above it": {
			hypers: map[string]string{
				"a": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n1") + "]}",
				"b": "{tier: 2, members: [" + fmt.Sprintf(exact, "HyperNode", "a") + "]}",
				"c": "{tier: 3, members: [{type: HyperNode, selector: {regexMatch: {pattern: .}}}]}",
			},
			want: "c/3:1[](b/2:1[](a/1:1[n1]))",
		},
		"a pattern that is none": {
			hypers: map[string]string{"a": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n1") + ", {type: Node, selector: {regexMatch: {pattern: '('}}}]}"},
			want:   "a/1:1[n1]",
			faults: "a InvalidSelector: spec.members[1]: error parsing regexp: missing closing ): `(`",
		},
		"a pattern that is too large": {
			hypers: map[string]string{"a": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n1") + ", {type: Node, selector: {regexMatch: {pattern: '(\\pL{90}){11}'}}}]}"},
			want:   "a/1:1[n1]",
			faults: "a InvalidSelector: spec.members[1]: the pattern is too large: its repetitions make more than 20000 steps",
		},
		"a tier name of two tiers": {
			hypers: map[string]string{
				"a": "{tier: 1, tierName: rack, members: [" + fmt.Sprintf(nodes, "n1") + "]}",
				"b": "{tier: 2, tierName: rack, members: [" + fmt.Sprintf(nodes, "n2") + "]}",
			},
			want:   "a/1:1[n1] b/2:1[n2]",
			faults: `b AmbiguousTier: the tier name "rack" means tier 1, which another HyperNode of that tier name has`,
		},
		"labels": {
			labels: []string{"rack", "hall"},
			want:   "c/1:2[n4 n5] h/2:3[n6](h/a/1:2[n2 n3])",
		},
		"labels of nodes that no HyperNode contains": {
			labels: []string{"rack", "hall"},
			hypers: map[string]string{"x": "{tier: 1, members: [" + fmt.Sprintf(nodes, "n[235]$") + "]}"},
			want:   "c/1:1[n4] h/2:1[n6] x/1:3[n2 n3 n5]",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			m := New(test.labels)
			for node, labels := range map[string]map[string]string{
				"n1": nil, "n2": {"rack": "a", "hall": "h"}, "n3": {"rack": "a", "hall": "h"}, "n4": {"rack": "c"}, "n5": {"rack": "c"},
				"n6": {"hall": "h"},
			} {
				m.SetNode(node, labels)
			}
			for name, spec := range test.hypers {
				m.SetHyperNode(parse(t, name, spec))
			}
			tree := m.Tree()
			if got := render(tree); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			var faults []string
			for _, name := range slices.Sorted(maps.Keys(tree.Faults)) {
				reason, message := Explain(tree.Faults[name])
				faults = append(faults, name+" "+reason+": "+message)
			}
			if got := strings.Join(faults, "; "); got != test.faults {
				t.Errorf("faults: got  %s\nwant %s", got, test.faults)
			}
		})
	}
}

// drawHyper draws a HyperNode over a few names.
func drawHyper(t *rapid.T, i int) *hypernodev1alpha1.HyperNode {
	h := &hypernodev1alpha1.HyperNode{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("h%d", i), Labels: map[string]string{"even": fmt.Sprint(i%2 == 0)},
	}}
	h.Spec.Tier = rapid.IntRange(0, 4).Draw(t, "tier")
	h.Spec.TierName = rapid.SampledFrom([]string{"", "", "rack", "row"}).Draw(t, "tier name")
	for range rapid.IntRange(1, 4).Draw(t, "members") {
		m := hypernodev1alpha1.Member{Type: rapid.SampledFrom([]hypernodev1alpha1.MemberType{"Node", "HyperNode"}).Draw(t, "type")}
		prefix := "n"
		if m.Type == hypernodev1alpha1.MemberHyperNode {
			prefix = "h"
		}
		switch rapid.IntRange(0, 3).Draw(t, "by") {
		case 0:
			m.Selector.RegexMatch = &hypernodev1alpha1.RegexMatch{Pattern: fmt.Sprintf("^%s[%d%d]$", prefix, rapid.IntRange(0, 9).Draw(t, "x"), rapid.IntRange(0, 9).Draw(t, "y"))}
		case 1:
			m.Selector.LabelMatch = &metav1.LabelSelector{MatchLabels: map[string]string{"even": rapid.SampledFrom([]string{"true", "false"}).Draw(t, "even")}}
		default:
			m.Selector.ExactMatch = &hypernodev1alpha1.ExactMatch{Name: fmt.Sprint(prefix, rapid.IntRange(0, 9).Draw(t, "name"))}
		}
		h.Spec.Members = append(h.Spec.Members, m)
	}
	return h
}

// TestTreeIsAForest checks the invariants of the package comment for any HyperNodes and nodes, and
// that the tree depends neither on the order in which they came nor on what was there before.
func TestTreeIsAForest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		labels := [][]string{nil, {"rack"}, {"rack", "row"}}[rapid.IntRange(0, 2).Draw(t, "labels")]
		m, again := New(labels), New(labels)
		nodes := map[string]map[string]string{}
		hypers := map[string]*hypernodev1alpha1.HyperNode{}
		for i := range rapid.IntRange(0, 8).Draw(t, "nodes") {
			nodes[fmt.Sprintf("n%d", i)] = map[string]string{
				"even": fmt.Sprint(i%2 == 0), "rack": rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "rack"), "row": rapid.SampledFrom([]string{"", "r"}).Draw(t, "row"),
			}
		}
		for i := range rapid.IntRange(0, 8).Draw(t, "hypers") {
			hypers[fmt.Sprintf("h%d", i)] = drawHyper(t, i)
		}
		// One model gets nodes first, and something that vanishes again; the other HyperNodes first.
		m.SetHyperNode(drawHyper(t, 9))
		m.SetNode("n9", map[string]string{"even": "false"})
		for _, name := range rapid.Permutation(slices.Sorted(maps.Keys(nodes))).Draw(t, "order of nodes") {
			m.SetNode(name, nil)
			m.SetNode(name, nodes[name])
		}
		m.Tree()
		for _, name := range rapid.Permutation(slices.Sorted(maps.Keys(hypers))).Draw(t, "order of HyperNodes") {
			m.SetHyperNode(hypers[name])
			again.SetHyperNode(hypers[name])
		}
		m.RemoveHyperNode("h9")
		m.RemoveNode("n9")
		for name := range nodes {
			again.SetNode(name, nodes[name])
		}
		tree := m.Tree()
		if diff := cmp.Diff(tree, again.Tree(), cmp.AllowUnexported(Tree{})); diff != "" {
			t.Fatal("the history matters:", diff)
		}
		check(t, tree, nodes, hypers)
		// Nothing that changes nothing makes a new tree.
		for name := range hypers {
			if m.SetHyperNode(hypers[name].DeepCopy()) {
				t.Fatal("an equal HyperNode counts as a change")
			}
		}
		for name := range nodes {
			if m.SetNode(name, maps.Clone(nodes[name])) {
				t.Fatal("an equal node counts as a change")
			}
		}
		if m.Tree() != tree {
			t.Fatal("another tree, and nothing has changed")
		}
	})
}

// check checks a tree against the HyperNodes and nodes that it is made of.
func check(t *rapid.T, tree *Tree, nodes map[string]map[string]string, hypers map[string]*hypernodev1alpha1.HyperNode) {
	in := map[string]int{}
	of := map[string]int{}
	for i := range tree.Domains {
		d := &tree.Domains[i]
		count := len(d.Nodes)
		for k := i + 1; k < d.End; k = tree.Domains[k].End {
			if tree.Domains[k].Parent != i || tree.Domains[k].Tier >= d.Tier {
				t.Fatalf("%s, of tier %d, is below %s, of tier %d", tree.Domains[k].Name, tree.Domains[k].Tier, d.Name, d.Tier)
			}
			count += tree.Domains[k].Count
		}
		if d.Count != count || d.End <= i {
			t.Fatalf("%s has %d nodes, counted %d", d.Name, d.Count, count)
		}
		for _, n := range d.Nodes {
			if other, twice := in[n]; twice {
				t.Fatalf("%s is in %s and %s", n, tree.Domains[other].Name, d.Name)
			}
			in[n] = i
			if nodes[n] == nil {
				t.Fatalf("%s does not exist", n)
			}
		}
		if hypers[d.Name] != nil {
			of[d.Name] = i
		}
	}
	if len(of) != len(hypers) {
		t.Fatalf("%d of %d HyperNodes have a domain", len(of), len(hypers))
	}
	// Whatever an exact member of a HyperNode is, it is in its domain, or there is a fault.
	for name, h := range hypers {
		i := of[name]
		inside := func(k int) bool { return i <= k && k < tree.Domains[i].End }
		missing := 0
		for _, m := range h.Spec.Members {
			if m.Selector.ExactMatch == nil {
				continue
			}
			at, found := in[m.Selector.ExactMatch.Name]
			if m.Type == hypernodev1alpha1.MemberHyperNode {
				at, found = of[m.Selector.ExactMatch.Name]
				found = found && at != i
			}
			if !found || !inside(at) {
				missing++
			}
		}
		if missing > 0 && len(tree.Faults[name]) == 0 {
			t.Fatalf("%s lacks %d members, and no fault says so: %v", name, missing, h.Spec.Members)
		}
	}
}

// BenchmarkTree makes the tree of 10,000 nodes in 1,250 HyperNodes of tier 1, which patterns select, and
// 276 above them.
func BenchmarkTree(b *testing.B) {
	m := New(nil)
	add := func(name string, tier int, kind hypernodev1alpha1.MemberType, pattern string) {
		h := &hypernodev1alpha1.HyperNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: hypernodev1alpha1.HyperNodeSpec{Tier: tier}}
		h.Spec.Members = []hypernodev1alpha1.Member{{Type: kind, Selector: hypernodev1alpha1.MemberSelector{
			RegexMatch: &hypernodev1alpha1.RegexMatch{Pattern: pattern}}}}
		m.SetHyperNode(h)
	}
	add("hall", 4, hypernodev1alpha1.MemberHyperNode, "^row-")
	for r := range 25 {
		add(fmt.Sprintf("row-%d", r), 3, hypernodev1alpha1.MemberHyperNode, fmt.Sprintf("^rack-%d-", r))
		for k := range 10 {
			add(fmt.Sprintf("rack-%d-%d", r, k), 2, hypernodev1alpha1.MemberHyperNode, fmt.Sprintf("^switch-%d-%d-", r, k))
			for s := range 5 {
				add(fmt.Sprintf("switch-%d-%d-%d", r, k, s), 1, hypernodev1alpha1.MemberNode, fmt.Sprintf("^node-%d-%d-%d-", r, k, s))
			}
		}
	}
	for i := range 10_000 {
		m.SetNode(fmt.Sprintf("node-%d-%d-%d-%d", i/400, i/40%10, i/8%5, i%8), nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		m.tree = nil
		if t := m.Tree(); len(t.Faults) > 0 || t.Domains[0].Count != 10_000 {
			b.Fatal(t.Faults)
		}
	}
}
