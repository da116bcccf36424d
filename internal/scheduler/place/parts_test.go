package place

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// partitioned makes a gang of equal partitions of pods of 1 CPU, of which it needs some.
func (c cluster) partitioned(partitions, size, least int, near *Near) Gang {
	g := Gang{MinMember: least * size, MinParts: []int{least}}
	class := c.class(pod("cpu", "1"))
	for i := range partitions {
		g.Demands = append(g.Demands, Demand{Class: class, Count: size})
		g.Parts = append(g.Parts, Part{Demands: []int{i}, Size: size, Near: near})
	}
	return g
}

func TestParts(t *testing.T) {
	inRack := &Near{Hard: true, HighestTier: 1}
	cases := map[string]struct {
		rows      [][]int
		used      map[string]int
		parts     int
		size      int
		least     int
		near      *Near // of each part
		all       *Near // of the gang
		most      int
		want      string
		wantParts string // domains of each part
	}{
		"each in one rack": {rows: [][]int{{1, 1}, {1}}, parts: 3, size: 3, least: 3, near: inRack, wantParts: "rack10=3, rack00=3, rack01=3"},
		"two in one rack":  {rows: [][]int{{2}, {1}}, parts: 3, size: 4, least: 3, near: inRack, wantParts: "rack10=4, rack00=4, rack00=4"},
		"as many as needed, and more as far as they fit": {rows: [][]int{{1, 1}}, parts: 3, size: 3, least: 1, near: inRack,
			wantParts: "rack00=3, rack01=3, "},
		"no more than wanted": {rows: [][]int{{1, 1}}, parts: 2, size: 3, least: 1, near: inRack, most: 3, wantParts: "rack00=3, "},
		"no rack is left for one": {rows: [][]int{{1, 1}}, parts: 3, size: 2, least: 3, near: inRack, used: map[string]int{"n000": 1, "n010": 1},
			want: "there is no room for 3 partitions of 2 pods, each in one domain of the network of tier 1 or below: 2 of 3 partitions fit"},
		"no rack is large enough": {rows: [][]int{{1, 1}}, parts: 2, size: 5, least: 1, near: inRack,
			want: "no domain of the network of tier 1 or below is large enough for 5 pods: the best of 2 domains, rack00, has room for 4 of 5 pods, and none would have room for more than 4 if nothing ran there"},
		"an unknown tier": {rows: [][]int{{1, 1}}, parts: 2, size: 1, least: 1, near: &Near{Hard: true, TierName: "x"},
			want: "no part of the network has tier x"},
		"an unknown tier of the gang": {rows: [][]int{{1, 1}}, parts: 2, size: 1, least: 1, all: &Near{Hard: true, TierName: "x"},
			want: "no part of the network has tier x"},
		"without a network, whole or not at all": {rows: [][]int{{1}}, parts: 3, size: 3, least: 1, wantParts: "rack00=3, , "},
		"too few without a network": {rows: [][]int{{1}}, parts: 2, size: 3, least: 2,
			want: "there is no room for 2 partitions of 3 pods: 1 of 2 partitions fit"},
		"in racks of one row": {rows: [][]int{{1, 1}, {1, 1}}, used: map[string]int{"n000": 2}, parts: 2, size: 4, least: 2, near: inRack,
			all: &Near{Hard: true, HighestTier: 2}, wantParts: "rack10=4, rack11=4"},
		"no row has room for all": {rows: [][]int{{1, 1}, {1, 1}}, used: map[string]int{"n000": 2, "n100": 1}, parts: 2, size: 4, least: 2, near: inRack,
			all:  &Near{Hard: true, HighestTier: 2},
			want: "no domain of the network of tier 2 or below has room for 8 pods: the best of 6 domains, row1, has room for 7 of 8 pods"},
		"soft goes on elsewhere": {rows: [][]int{{1, 1}}, used: map[string]int{"n000": 1}, parts: 2, size: 3, least: 2, near: &Near{},
			wantParts: "rack00=3, rack01=3"},
		"soft is split if it must be": {rows: [][]int{{1, 1}}, used: map[string]int{"n000": 2, "n010": 2}, parts: 1, size: 3, least: 1, near: &Near{},
			wantParts: "rack00=2 rack01=1"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			c, tree := racks(test.rows...)
			one := c.class(pod("cpu", "1"))
			for node, n := range test.used {
				i, _ := c.Index(node)
				c.apply(i, one, int64(n))
			}
			before := state(c.Snapshot)
			p := NewPlacer(c.Snapshot, Options{Network: tree})
			g := c.partitioned(test.parts, test.size, test.least, test.near)
			g.Near, g.Most = test.all, test.most
			d := p.Place(g)
			got := ""
			if d.Shortage != nil {
				got = d.Shortage.Counted()
				if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
					t.Error("the snapshot changed:", diff)
				}
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			parts, sep := "", ""
			for _, placed := range d.Placed {
				parts += sep + domainsOf(c, tree, Decision{Placed: [][]int32{placed}})
				sep = ", "
			}
			if test.wantParts != "" && parts != test.wantParts && parts != test.wantParts+", " {
				t.Errorf("parts in %s, want %s", parts, test.wantParts)
			}
			if err := p.AssertConsistent(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPartsFitWheneverTheyCan checks partitions of one size and class, each of which must be in one
// domain: as many fit as the largest domains that are allowed hold.
func TestPartsFitWheneverTheyCan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.build(w.order())
		o := drawOptions(t)
		Place(c.Snapshot, drawRequest(t, 2).gang(c), o)
		o.Network = drawNetwork(t, c)
		near := &Near{Hard: true, HighestTier: rapid.IntRange(0, 5).Draw(t, "highest tier")}
		size, n := rapid.IntRange(1, 4).Draw(t, "size"), rapid.IntRange(1, 4).Draw(t, "partitions")
		g := c.partitioned(n, size, rapid.IntRange(1, n).Draw(t, "least"), near)
		// The domains that are allowed and in no other that is.
		fits := 0
		one := c.class(pod("cpu", "1"))
		for i, d := range o.Network.Domains {
			above := d.Parent
			if d.Tier > near.HighestTier || above >= 0 && o.Network.Domains[above].Tier <= near.HighestTier {
				continue
			}
			places := 0
			for ; places < 4*4; places++ {
				if !search(c.within(o.Network, i), Gang{Demands: []Demand{{Class: one, Count: places + 1, Min: places + 1}}}) {
					break
				}
			}
			fits += places / size
		}
		before := state(c.Snapshot)
		p := NewPlacer(c.Snapshot, o)
		d := p.Place(g)
		if err := p.AssertConsistent(); err != nil {
			t.Fatal(err)
		}
		if (d.Shortage == nil) != (fits >= g.MinParts[0]) {
			t.Fatalf("%d of %d partitions fit, and %d are needed; placed %v: %+v", fits, n, g.MinParts[0], d.Shortage == nil, d.Shortage)
		}
		if d.Shortage != nil {
			if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" || d.Shortage.Stable() == "" {
				t.Fatal("a gang that does not fit changed the snapshot:", diff)
			}
			return
		}
		whole := 0
		for k, placed := range d.Placed {
			switch len(placed) {
			case 0:
			case size:
				whole++
				if tierOf(c, o.Network, Decision{Placed: d.Placed[k : k+1]}, near) < 0 {
					t.Fatalf("partition %d is in no domain that is allowed", k)
				}
			default:
				t.Fatalf("partition %d has %d of %d pods", k, len(placed), size)
			}
		}
		if whole != min(n, fits) {
			t.Fatal(fmt.Sprint(whole, " partitions were placed of ", n, ", and ", fits, " fit"))
		}
		p.Undo(g, d)
		if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
			t.Fatal("undone, but the snapshot changed:", diff)
		}
	})
}

// TestPartsHaveTheirMinimum checks gangs of parts with surplus, of up to two classes, and of pods in no
// part: what is placed has the minimum in all, as many parts of each set as needed, each with its
// minimum in a domain that is allowed; and what does not fit leaves the snapshot as it was.
func TestPartsHaveTheirMinimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.build(w.order())
		o := drawOptions(t)
		Place(c.Snapshot, drawRequest(t, 2).gang(c), o)
		o.Network = drawNetwork(t, c)
		g := Gang{MinParts: []int{rapid.IntRange(0, 2).Draw(t, "least"), 0}}
		classes := []*Class{c.class(pod("cpu", "1")), c.class(pod("cpu", "2"))}
		all := 0
		demand := func() int {
			n := rapid.IntRange(1, 4).Draw(t, "pods")
			g.Demands = append(g.Demands, Demand{Class: rapid.SampledFrom(classes).Draw(t, "class"), Count: n})
			all += n
			return n
		}
		for range rapid.IntRange(1, 3).Draw(t, "parts") {
			part := Part{Set: rapid.IntRange(0, 1).Draw(t, "set")}
			pods := 0
			for range rapid.IntRange(1, 2).Draw(t, "demands") {
				part.Demands = append(part.Demands, len(g.Demands))
				pods += demand()
			}
			part.Size = rapid.IntRange(1, pods).Draw(t, "size")
			if rapid.Bool().Draw(t, "near") {
				part.Near = &Near{Hard: rapid.Bool().Draw(t, "hard"), HighestTier: rapid.IntRange(0, 5).Draw(t, "highest tier")}
			}
			g.Parts = append(g.Parts, part)
		}
		for range rapid.IntRange(0, 1).Draw(t, "others") {
			demand()
		}
		g.MinMember = rapid.IntRange(0, all).Draw(t, "minMember")
		before := state(c.Snapshot)
		p := NewPlacer(c.Snapshot, o)
		d := p.Place(g)
		if err := p.AssertConsistent(); err != nil {
			t.Fatal(err)
		}
		if d.Shortage != nil {
			if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" || d.Shortage.Stable() == "" {
				t.Fatal("a gang that does not fit changed the snapshot:", diff)
			}
			return
		}
		total, whole := 0, make([]int, 2)
		for _, placed := range d.Placed {
			total += len(placed)
		}
		for _, part := range g.Parts {
			var of Decision
			n := 0
			for _, i := range part.Demands {
				of.Placed = append(of.Placed, d.Placed[i])
				n += len(d.Placed[i])
			}
			if n == 0 {
				continue
			}
			whole[part.Set]++
			if n < part.Size {
				t.Fatalf("a part has %d pods of %d", n, part.Size)
			}
			if part.Near != nil && part.Near.Hard && tierOf(c, o.Network, of, part.Near) < 0 {
				t.Fatal("a part is in no domain that is allowed")
			}
		}
		if total < g.MinMember || whole[0] < g.MinParts[0] {
			t.Fatalf("%d pods of %d, %d parts of %d", total, g.MinMember, whole[0], g.MinParts[0])
		}
		p.Undo(g, d)
		if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
			t.Fatal("undone, but the snapshot changed:", diff)
		}
	})
}

// TestPartsWithSurplus checks where the pods of parts go that need fewer than they have.
func TestPartsWithSurplus(t *testing.T) {
	inRack := &Near{Hard: true, HighestTier: 1}
	for sentence, tc := range map[string]struct {
		rows      [][]int
		minMember int
		parts     []Part // of a demand of 6 pods each
		want      string
	}{
		"all of a part are in one rack, though a smaller one holds its minimum": {rows: [][]int{{1, 2}}, minMember: 1,
			parts: []Part{{Size: 3, Near: inRack}}, want: "rack01=6"},
		"surplus of parts counts for the gang's minimum": {rows: [][]int{{2, 2}}, minMember: 12,
			parts: []Part{{Size: 2, Near: inRack}, {Size: 2, Near: inRack}}, want: "rack00=6, rack01=6"},
	} {
		t.Run(sentence, func(t *testing.T) {
			c, tree := racks(tc.rows...)
			g := Gang{MinMember: tc.minMember, MinParts: []int{0}, Parts: tc.parts}
			for i := range g.Parts {
				g.Parts[i].Demands = []int{i}
				g.Demands = append(g.Demands, Demand{Class: c.class(pod("cpu", "1")), Count: 6})
			}
			d := NewPlacer(c.Snapshot, Options{Network: tree}).Place(g)
			got, sep := "", ""
			if d.Shortage != nil {
				got = d.Shortage.Counted()
			}
			for _, placed := range d.Placed {
				got += sep + domainsOf(c, tree, Decision{Placed: [][]int32{placed}})
				sep = ", "
			}
			if got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
