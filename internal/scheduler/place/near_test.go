package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	"lockstep.dev/lockstep/internal/scheduler/network"
)

// hyper builds a HyperNode: members that begin with a colon are HyperNodes.
func hyper(name string, tier int, members ...string) *hypernodev1alpha1.HyperNode {
	h := &hypernodev1alpha1.HyperNode{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: hypernodev1alpha1.HyperNodeSpec{Tier: tier, TierName: fmt.Sprintf("t%d", tier)}}
	for _, m := range members {
		name, isHyper := strings.CutPrefix(m, ":")
		member := hypernodev1alpha1.Member{Type: hypernodev1alpha1.MemberNode,
			Selector: hypernodev1alpha1.MemberSelector{ExactMatch: &hypernodev1alpha1.ExactMatch{Name: name}}}
		if isHyper {
			member.Type = hypernodev1alpha1.MemberHyperNode
		}
		h.Spec.Members = append(h.Spec.Members, member)
	}
	return h
}

// tree makes the tree of HyperNodes over the nodes of a cluster.
func (c cluster) tree(hypers ...*hypernodev1alpha1.HyperNode) *network.Tree {
	m := network.New(nil)
	for _, n := range c.All() {
		m.SetNode(n.Name, n.Labels)
	}
	for _, h := range hypers {
		m.SetHyperNode(h)
	}
	return m.Tree()
}

// racks adds nodes of 4 CPUs: as many in each rack as rows says, by row. Racks have tier 1, rows
// tier 2, and the hall tier 3.
func racks(rows ...[]int) (cluster, *network.Tree) { return racksWith(4, rows...) }

// racksWith is racks with nodes of so many CPUs.
func racksWith(cpus int, rows ...[]int) (cluster, *network.Tree) {
	c := newCluster()
	hall := hyper("hall", 3)
	var hypers []*hypernodev1alpha1.HyperNode
	for r, row := range rows {
		h := hyper(fmt.Sprintf("row%d", r), 2)
		for k, nodes := range row {
			rack := hyper(fmt.Sprintf("rack%d%d", r, k), 1)
			for i := range nodes {
				name := fmt.Sprintf("n%d%d%d", r, k, i)
				c.node(name, "cpu", fmt.Sprint(cpus), "memory", "64Gi")
				rack.Spec.Members = append(rack.Spec.Members, hyper("", 0, name).Spec.Members...)
			}
			hypers = append(hypers, rack)
			h.Spec.Members = append(h.Spec.Members, hyper("", 0, ":"+rack.Name).Spec.Members...)
		}
		hypers = append(hypers, h)
		hall.Spec.Members = append(hall.Spec.Members, hyper("", 0, ":"+h.Name).Spec.Members...)
	}
	return c, c.tree(append(hypers, hall)...)
}

// domainsOf returns the racks of a decision's pods, with their numbers: "rack00=4 rack01=1".
func domainsOf(c cluster, t *network.Tree, d Decision) string {
	count := map[string]int{}
	for _, placed := range d.Placed {
		for _, n := range placed {
			name := "none"
			for _, domain := range t.Domains {
				if slices.Contains(domain.Nodes, c.Node(n).Name) {
					name = domain.Name
				}
			}
			count[name]++
		}
	}
	var out []string
	for name, n := range count {
		out = append(out, fmt.Sprintf("%s=%d", name, n))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestNear(t *testing.T) {
	hard := func(tier int, on ...string) *Near { return &Near{Hard: true, HighestTier: tier, On: on} }
	soft := func(on ...string) *Near { return &Near{On: on} }
	cases := map[string]struct {
		rows [][]int
		used map[string]int // pods of 1 CPU on nodes, placed before
		n    int            // pods of the gang, of 1 CPU
		more int            // surplus
		near *Near
		want string // racks, or the shortage
	}{
		"the smallest rack with room": {rows: [][]int{{2, 1}, {3, 1}}, n: 4, near: hard(1), want: "rack01=4"},
		"the fullest rack with room": {rows: [][]int{{2, 2}}, used: map[string]int{"n010": 2}, n: 4, near: hard(1),
			want: "rack01=4"},
		"of equal racks the one in the fuller row": {rows: [][]int{{1, 1}, {1, 1}}, used: map[string]int{"n100": 3}, n: 4,
			near: hard(1), want: "rack11=4"},
		"no rack has room": {rows: [][]int{{1, 2}}, used: map[string]int{"n000": 1, "n010": 1}, n: 8, near: hard(1),
			want: "no domain of the network of tier 1 or below has room for 8 pods; the best of 2 domains, rack01, has room for 7 of 8 pods"},
		"no rack is large enough": {rows: [][]int{{1, 1}}, n: 5, near: hard(1),
			want: "no domain of the network of tier 1 or below is large enough for 5 pods; the best of 2 domains, rack00, has room for 4 of 5 pods, and none would have room for more than 4 if nothing ran there"},
		"a row holds what no rack holds, in few racks": {rows: [][]int{{1, 1, 1}, {1, 1}}, n: 5, near: hard(2), want: "rack10=4 rack11=1"},
		"what is left over goes where least room is left": {rows: [][]int{{1, 1, 1}}, used: map[string]int{"n010": 3}, n: 5,
			near: hard(2), want: "rack00=4 rack01=1"},
		"soft spreads over few racks": {rows: [][]int{{1, 1}, {1, 1}}, used: map[string]int{"n000": 1, "n010": 2}, n: 11, near: soft(),
			want: "rack00=3 rack10=4 rack11=4"},
		"soft prefers a rack":              {rows: [][]int{{1, 1}}, used: map[string]int{"n000": 1}, n: 3, near: soft(), want: "rack00=3"},
		"soft waits if it fits nowhere":    {rows: [][]int{{1, 1}}, n: 9, near: soft(), want: "not enough cpu for 9 pods; 8 of 9 pods fit, 1 of cpu missing; nodes: 2 Insufficient cpu"},
		"surplus goes into the domain":     {rows: [][]int{{1, 2}}, n: 2, more: 4, near: hard(1), want: "rack01=6"},
		"surplus goes up, and not too far": {rows: [][]int{{1, 1}, {2}}, n: 4, more: 8, near: hard(2), want: "rack10=8"},
		"surplus fills what is allowed":    {rows: [][]int{{1, 1}, {1}}, n: 4, more: 8, near: hard(2), want: "rack00=4 rack01=4"},
		"other pods fix the domain": {rows: [][]int{{1, 2}}, used: map[string]int{"n000": 1}, n: 3, near: hard(1, "n000"),
			want: "rack00=3"},
		"other pods fix the domain, which is full": {rows: [][]int{{1, 2}}, used: map[string]int{"n000": 2}, n: 3, near: hard(1, "n000"),
			want: "no domain of the network of tier 1 or below has room for 3 pods; rack00 has room for 2 of 3 pods"},
		"other pods are apart": {rows: [][]int{{1, 2}}, n: 1, near: hard(1, "n000", "n010"),
			want: "its other pods are not in one domain of the network of tier 1 or below; its other pods are not in one domain of the network of tier 1 or below"},
		"a node that is gone fixes nothing": {rows: [][]int{{1, 2}}, n: 1, near: hard(1, "gone"), want: "rack00=1"},
		"soft goes where its pods are": {rows: [][]int{{1, 1, 1}}, used: map[string]int{"n020": 3, "n010": 2}, n: 3,
			near: soft("n010", "n020"), want: "rack01=2 rack02=1"},
		"no rack is large enough, and the cluster is full": {rows: [][]int{{1, 1}}, used: map[string]int{"n000": 4, "n010": 2}, n: 5, near: hard(1),
			want: "no domain of the network of tier 1 or below is large enough for 5 pods; the best of 2 domains, rack01, has room for 2 of 5 pods, and none would have room for more than 4 if nothing ran there"},
		"a rack is large enough, and the cluster is full": {rows: [][]int{{1, 1}}, used: map[string]int{"n000": 4, "n010": 2}, n: 4, near: hard(1),
			want: "not enough cpu for 4 pods; 2 of 4 pods fit, 2 of cpu missing; nodes: 2 Insufficient cpu"},
		"the name of a tier": {rows: [][]int{{1, 1}}, n: 5, near: &Near{Hard: true, TierName: "t2"}, want: "rack00=4 rack01=1"},
		"an unknown tier": {rows: [][]int{{1, 1}}, n: 5, near: &Near{Hard: true, TierName: "x"},
			want: "no part of the network has tier x; no part of the network has tier x"},
		"no HyperNodes": {n: 1, near: hard(1), want: "a pod that fits nowhere"},
		"any tier":      {rows: [][]int{{1, 1}, {1}}, n: 12, near: hard(AnyTier), want: "rack00=4 rack01=4 rack10=4"},
		"tier 0 of racks of tier 1": {rows: [][]int{{1, 1}}, n: 1, near: hard(0),
			want: "the network has no domain of tier 0 or below; the network has no domain of tier 0 or below"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			c, tree := racks(test.rows...)
			if test.rows == nil {
				c.node("alone", "cpu", "4", "memory", "1Gi")
				test.want = "the network has no domain of tier 1 or below; the network has no domain of tier 1 or below"
			}
			one := c.class(pod("cpu", "1"))
			for node, n := range test.used {
				i, _ := c.Index(node)
				c.apply(i, one, int64(n))
			}
			before := state(c.Snapshot)
			p := NewPlacer(c.Snapshot, Options{Network: tree})
			d := p.Place(Gang{Demands: []Demand{{Class: one, Count: test.n + test.more, Min: test.n}}, Near: test.near})
			got := domainsOf(c, tree, d)
			if d.Shortage != nil {
				got = d.Shortage.Stable() + "; " + d.Shortage.Detail()
				if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
					t.Error("the snapshot changed:", diff)
				}
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if err := p.AssertConsistent(); err != nil {
				t.Error(err)
			}
		})
	}
}

// drawNetwork draws a tree over a cluster's nodes: up to 3 racks, in up to 2 rows, in a hall. Nodes
// and racks may be in none.
func drawNetwork(t *rapid.T, c cluster) *network.Tree {
	hypers := []*hypernodev1alpha1.HyperNode{hyper("rack0", 1), hyper("rack1", 1), hyper("rack2", 1), hyper("row0", 2), hyper("row1", 2),
		hyper("hall", rapid.IntRange(3, 5).Draw(t, "tier of the hall"))}
	add := func(h *hypernodev1alpha1.HyperNode, member string) {
		h.Spec.Members = append(h.Spec.Members, hyper("", 0, member).Spec.Members...)
	}
	var names []string
	for _, n := range c.All() {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	for _, n := range names {
		if at := rapid.IntRange(0, 6).Draw(t, n+" in"); at < len(hypers) {
			add(hypers[at], n)
		}
	}
	for i := range 3 {
		if at := rapid.IntRange(3, 6).Draw(t, "rack in"); at < len(hypers) {
			add(hypers[at], fmt.Sprintf(":rack%d", i))
		}
	}
	for i := range 2 {
		if rapid.Bool().Draw(t, "row in the hall") {
			add(hypers[5], fmt.Sprintf(":row%d", i))
		}
	}
	return c.tree(hypers...)
}

// within returns a copy of the part of a cluster that is in a domain.
func (c cluster) within(t *network.Tree, domain int) cluster {
	part := cluster{NewSnapshot(c.Dims())}
	for i := domain; i < t.Domains[domain].End; i++ {
		for _, name := range t.Domains[i].Nodes {
			if n, ok := c.Index(name); ok {
				part.Set(*c.Node(n))
			}
		}
	}
	return part
}

// TestNearFitsWheneverItCan checks gangs that must be in one domain against an exhaustive search of
// every domain: a gang of one class fits exactly when it can, in a domain of the lowest tier
// possible; one of several classes only when it can. What is placed is in one domain that is allowed.
func TestNearFitsWheneverItCan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.build(w.order())
		o := drawOptions(t)
		Place(c.Snapshot, drawRequest(t, 2).gang(c), o)
		o.Network = drawNetwork(t, c)
		g := drawRequest(t, 3).gang(c)
		g.MinMember = max(g.MinMember, 1)
		g.Near = &Near{Hard: true, HighestTier: rapid.IntRange(0, 5).Draw(t, "highest tier")}
		if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
			g.Near = &Near{Hard: true, TierName: fmt.Sprintf("t%d", rapid.IntRange(1, 3).Draw(t, "name"))}
		}
		for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "others") {
			g.Near.On = append(g.Near.On, fmt.Sprintf("node-%d", rapid.IntRange(0, 6).Draw(t, "on")))
		}
		lowest, tiers := -1, map[int]bool{} // the lowest tier that the oracle finds
		for i := range o.Network.Domains {
			if !allowed(c, o.Network, i, g.Near) {
				continue
			}
			if search(c.within(o.Network, i), g) {
				tiers[o.Network.Domains[i].Tier] = true
				if tier := o.Network.Domains[i].Tier; lowest < 0 || tier < lowest {
					lowest = tier
				}
			}
		}
		before := state(c.Snapshot)
		p := NewPlacer(c.Snapshot, o)
		minimum := g
		minimum.Most = 1 // the minimum and no more
		d := p.Place(minimum)
		if err := p.AssertConsistent(); err != nil {
			t.Fatal(err)
		}
		if d.Shortage != nil {
			if s := d.Shortage; s.Fit >= s.Wanted || s.Stable() == "" || s.Detail() == "" {
				t.Fatalf("shortage %+v", s)
			}
			if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
				t.Fatal("a gang that does not fit changed the snapshot:", diff)
			}
			if lowest >= 0 && len(g.Demands) == 1 {
				t.Fatalf("it fits into a domain of tier %d: %s", lowest, d.Shortage.Detail())
			}
			return
		}
		if lowest < 0 {
			t.Fatal("placed, though impossible")
		}
		if got := tierOf(c, o.Network, d, g.Near); len(g.Demands) == 1 && got > lowest {
			t.Fatalf("in a domain of tier %d, and one of tier %d has room", got, lowest)
		}
		// The surplus is in a domain that is allowed, too.
		p.Undo(minimum, d)
		if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
			t.Fatal("undone, but the snapshot changed:", diff)
		}
		if d := p.Place(g); d.Shortage != nil || tierOf(c, o.Network, d, g.Near) < 0 {
			t.Fatalf("with surplus it is in no domain that is allowed: %+v", d)
		}
	})
}

// allowed decides independently whether a domain may have a gang.
func allowed(c cluster, t *network.Tree, i int, near *Near) bool {
	highest := near.HighestTier
	if near.TierName != "" {
		highest = int(near.TierName[1] - '0')
		known := false
		for _, d := range t.Domains {
			known = known || d.TierName == near.TierName
		}
		if !known {
			return false
		}
	}
	for _, name := range near.On {
		if _, exists := c.Index(name); !exists {
			continue
		}
		if _, in := c.within(t, i).Index(name); !in {
			return false
		}
	}
	return t.Domains[i].Tier <= highest
}

// tierOf returns the lowest tier of a domain that is allowed and has all pods placed, or -1.
func tierOf(c cluster, t *network.Tree, d Decision, near *Near) int {
	tier := -1
	for i := range t.Domains {
		if !allowed(c, t, i, near) || tier >= 0 && t.Domains[i].Tier >= tier {
			continue
		}
		part, all := c.within(t, i), true
		for _, placed := range d.Placed {
			for _, n := range placed {
				_, in := part.Index(c.Node(n).Name)
				all = all && in
			}
		}
		if all {
			tier = t.Domains[i].Tier
		}
	}
	return tier
}

// TestSoftFitsLikePlain checks that a gang that is preferably near fits exactly when it fits without
// that, and in one domain of the lowest tier if there is one with room.
func TestSoftFitsLikePlain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.build(w.order())
		o := drawOptions(t)
		Place(c.Snapshot, drawRequest(t, 2).gang(c), o)
		o.Network = drawNetwork(t, c)
		r := drawRequest(t, 1)
		g := r.gang(c)
		g.Most, g.MinMember = 1, max(g.MinMember, 1)
		can := search(c, g)
		lowest := -1
		for i, d := range o.Network.Domains {
			if search(c.within(o.Network, i), g) && (lowest < 0 || d.Tier < lowest) {
				lowest = d.Tier
			}
		}
		g.Near = &Near{}
		d := Place(c.Snapshot, g, o)
		if (d.Shortage == nil) != can {
			t.Fatalf("fits %v, exhaustively %v", d.Shortage == nil, can)
		}
		if can && lowest >= 0 {
			if got := tierOf(c, o.Network, d, &Near{HighestTier: AnyTier}); got < 0 || got > lowest {
				t.Fatalf("in a domain of tier %d, and one of tier %d has room", got, lowest)
			}
		}
	})
}

// TestNearDependsOnlyOnTheState checks that the same gangs go to the same nodes, regardless of the
// order in which nodes were added, and of the placer's history.
func TestNearDependsOnlyOnTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		o := drawOptions(t)
		a := w.build(w.order())
		b := w.build(rapid.Permutation(w.order()).Draw(t, "order"))
		o.Network = drawNetwork(t, a)
		keeps := NewPlacer(a.Snapshot, o)
		for range rapid.IntRange(1, 4).Draw(t, "gangs") {
			r := drawRequest(t, 3)
			ga, gb := r.gang(a), r.gang(b)
			ga.Near = &Near{Hard: rapid.Bool().Draw(t, "hard"), HighestTier: rapid.IntRange(1, 5).Draw(t, "highest tier")}
			gb.Near = ga.Near
			da, db := keeps.Place(ga), Place(b.Snapshot, gb, o)
			if diff := cmp.Diff(da.Shortage, db.Shortage); diff != "" {
				t.Fatal("shortage differs:", diff)
			}
			for i := range da.Placed {
				if x, y := a.names(da.Placed[i]), b.names(db.Placed[i]); !slices.Equal(x, y) {
					t.Fatalf("demand %d: %v and %v", i, x, y)
				}
			}
		}
	})
}

// TestNearFollowsTheNodes checks that domains follow nodes that are removed and added, and a new tree.
func TestNearFollowsTheNodes(t *testing.T) {
	c, tree := racks([]int{1, 1})
	p := NewPlacer(c.Snapshot, Options{Network: tree})
	g := c.gang(4, pod("cpu", "1"))
	g.Near = &Near{Hard: true, HighestTier: 1}
	place := func() string {
		d := p.Place(g)
		if d.Shortage != nil {
			return d.Shortage.Detail()
		}
		defer p.Undo(g, d)
		return domainsOf(c, p.o.Network, d)
	}
	if got := place(); got != "rack00=4" {
		t.Error(got)
	}
	c.Remove("n000")
	if got := place(); got != "rack01=4" {
		t.Error(got)
	}
	c.node("other", "cpu", "4", "memory", "1Gi") // gets the index of n000
	c.Remove("n010")
	if got := place(); got != "the best of 2 domains, rack00, has room for 0 of 4 pods, and none would have room for more than 0 if nothing ran there" {
		t.Error(got)
	}
	p.SetNetwork(c.tree(hyper("rack", 1, "other")))
	if got := place(); got != "rack=4" {
		t.Error(got)
	}
}

// TestRarePodsAreNear checks gangs whose classes do not use counting alone.
func TestRarePodsAreNear(t *testing.T) {
	c, tree := racks([]int{2, 2})
	filter := refuse{"n000": true, "n010": false}
	p := NewPlacer(c.Snapshot, Options{Network: tree, Rare: filter})
	template := pod("cpu", "2")
	template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}
	g := c.gang(3, template)
	g.Near = &Near{Hard: true, HighestTier: 1}
	if got := domainsOf(c, tree, p.Place(g)); got != "rack01=3" {
		t.Error(got)
	}
	d := p.Place(g)
	if d.Shortage == nil || !strings.Contains(d.Shortage.Detail(), "has room for 2 of 3 pods") {
		t.Errorf("%+v", d.Shortage)
	}
}

// refuse is a rare filter that refuses some nodes.
type refuse map[string]bool

func (refuse) Scores(*Class) bool     { return false }
func (r refuse) Concerns(*Class) bool { return false }

func (r refuse) Filter(_ *Class, nodes []*Node, refused []string) {
	for i, n := range nodes {
		if r[n.Name] {
			refused[i] = "no"
		}
	}
}

func (r refuse) Score(*Class, []*Node, []int64) {}
func (r refuse) Add(*Class, *Node)              {}
func (r refuse) Remove(*Class, *Node)           {}
