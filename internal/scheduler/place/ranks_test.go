package place

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRanksAreAWish checks for random gangs that ranks never keep a gang from its nodes, and that pods of
// the lowest rank are placed as they are when they come alone.
func TestRanksAreAWish(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		plain, ranked := w.build(w.order()), w.build(w.order())
		var g Gang
		for range rapid.IntRange(1, 3).Draw(t, "demands") {
			count := rapid.IntRange(1, 4).Draw(t, "count")
			class, err := NewClass(plain.Dims(), drawPod(t))
			if err != nil {
				t.Fatal(err)
			}
			g.Demands = append(g.Demands, Demand{class, count, rapid.IntRange(0, count).Draw(t, "min")})
			g.MinMember += g.Demands[len(g.Demands)-1].Min
		}
		without := NewPlacer(plain.Snapshot, Options{}).Place(g)
		g.Ranks = rapid.SliceOfN(rapid.IntRange(0, 3), len(g.Demands), len(g.Demands)).Draw(t, "ranks")
		with := NewPlacer(ranked.Snapshot, Options{}).Place(g)
		if without.Shortage == nil && with.Shortage != nil {
			t.Fatalf("with ranks %v it does not fit: %+v", g.Ranks, with.Shortage)
		}
		if with.Shortage != nil {
			return
		}
		for i, d := range g.Demands {
			if n := len(with.Placed[i]); n < d.Min || n > d.Count {
				t.Fatalf("demand %d: %d pods", i, n)
			}
		}
	})
}

// TestLowerRanksComeFirst checks that the demand of the lower rank gets the better node.
func TestLowerRanksComeFirst(t *testing.T) {
	for first := range 2 {
		c := newCluster()
		c.node("large", "cpu", "8", "memory", "8Gi")
		c.node("small", "cpu", "4", "memory", "4Gi")
		g := Gang{MinMember: 2, Ranks: []int{1, 1}}
		for range 2 {
			class, err := NewClass(c.Dims(), pod("cpu", "3", "memory", "3Gi"))
			if err != nil {
				t.Fatal(err)
			}
			g.Demands = append(g.Demands, Demand{class, 1, 1})
		}
		g.Ranks[first] = 0
		d := NewPlacer(c.Snapshot, Options{}).Place(g)
		if d.Shortage != nil || c.Node(d.Placed[first][0]).Name != "large" {
			t.Errorf("first %d: %+v", first, d)
		}
	}
}
