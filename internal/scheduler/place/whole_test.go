package place

import (
	"math/rand/v2"
	"testing"
)

// wholeRacks runs gangs of random sizes and lengths on 64 racks of 8 nodes of 8 GPUs, at about two
// thirds of the cluster's GPUs, and returns the mean share of racks that are free as a whole, of those
// that would be if the gangs were packed without a gap. near makes the gangs near or not.
func wholeRacks(t *testing.T, near *Near, strategy Strategy) float64 {
	t.Helper()
	const racksMax, nodes, gpus, steps = 64, 8, 8, 3000
	rows := make([][]int, 8)
	for r := range rows {
		for range racksMax / len(rows) {
			rows[r] = append(rows[r], nodes)
		}
	}
	c, tree := racksWith(gpus, rows...)
	p := NewPlacer(c.Snapshot, Options{Network: tree, Strategy: strategy})
	random := rand.New(rand.NewPCG(1, 2))
	type running struct {
		g    Gang
		d    Decision
		ends int
	}
	var list []running
	used, whole, could := 0, 0, 0
	for step := range steps {
		kept := list[:0]
		for _, r := range list {
			if r.ends <= step {
				p.Undo(r.g, r.d)
				used -= r.g.MinMember
				continue
			}
			kept = append(kept, r)
		}
		list = kept
		size := 1 << random.IntN(6) // 1 to 32 GPUs
		if used+size <= racksMax*nodes*gpus*2/3 {
			g := c.gang(size, pod("cpu", "1"))
			g.MinMember, g.Near = size, near
			if d := p.Place(g); d.Shortage == nil {
				used += size
				list = append(list, running{g, d, step + 100 + random.IntN(400)})
			}
		}
		if step < steps/3 {
			continue
		}
		for _, d := range tree.Domains {
			if d.Tier != 1 {
				continue
			}
			free := true
			for _, name := range d.Nodes {
				i, _ := c.Index(name)
				free = free && c.Node(i).Used.At(CPU) == 0
			}
			if free {
				whole++
			}
		}
		could += racksMax - (used+nodes*gpus-1)/(nodes*gpus)
	}
	return float64(whole) / float64(could)
}

// TestLargeDomainsStayWhole measures how many racks stay free as a whole under a load of small gangs, for
// large ones to come. The bounds are somewhat below what was measured.
func TestLargeDomainsStayWhole(t *testing.T) {
	hard := wholeRacks(t, &Near{Hard: true, HighestTier: 1}, LeastAllocated)
	soft := wholeRacks(t, &Near{}, LeastAllocated)
	spread, packed := wholeRacks(t, nil, LeastAllocated), wholeRacks(t, nil, MostAllocated)
	t.Logf("share of whole racks: hard %.2f, soft %.2f, without networkTopology %.2f, packed by node %.2f", hard, soft, spread, packed)
	if hard < 0.7 || soft < 0.7 || spread > 0.1 {
		t.Error("large domains do not stay whole")
	}
}
