package simulate

import (
	"testing"

	"pgregory.net/rapid"
)

// fewestBins returns the smallest number of domains that items need, by trying every packing. Items
// are placed in order, each in a domain in use or in the first empty one.
func fewestBins(p pool, items []item) int {
	best := len(items)
	var place func(i int, bins []item)
	place = func(i int, bins []item) {
		if len(bins) >= best {
			return
		}
		if i == len(items) {
			best = len(bins)
			return
		}
		for b := range bins {
			if bins[b].rest+items[i].rest <= p.l3 && bins[b].fills+items[i].fills < p.perNUMA {
				bins[b].rest += items[i].rest
				bins[b].fills += items[i].fills
				place(i+1, bins)
				bins[b].rest -= items[i].rest
				bins[b].fills -= items[i].fills
			}
		}
		place(i+1, append(bins, items[i]))
	}
	place(0, nil)
	return best
}

// TestTheBoundIsTight compares the bound with every packing: it is never above the true number of
// domains, never below it by more than one, and nearly always equal.
func TestTheBoundIsTight(t *testing.T) {
	draws, equal := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := pool{rapid.IntRange(2, 16).Draw(t, "CPUs"), rapid.IntRange(1, 5).Draw(t, "domains in a NUMA node")}
		counts := map[item]int{}
		var items []item
		for range rapid.IntRange(0, 9).Draw(t, "pods") {
			i := item{rapid.IntRange(0, p.perNUMA-1).Draw(t, "fills"), rapid.IntRange(1, p.l3-1).Draw(t, "rest")}
			counts[i]++
			items = append(items, i)
		}
		bound, want := binsNeeded(p, counts), fewestBins(p, items)
		if bound > want || bound < want-1 {
			t.Fatalf("at least %d domains, the fewest possible are %d", bound, want)
		}
		draws++
		if bound == want {
			equal++
		}
	})
	if equal < draws*9/10 {
		t.Errorf("equal in %d of %d draws only", equal, draws)
	}
}

// bruteForce returns the largest number of idle domains of a node, by trying every distribution of
// the pods' CPUs over the domains of its NUMA nodes, none over more domains than it needs.
func bruteForce(p pool, numas int, sizes []int) (idle int, ok bool) {
	left := make([]int, p.perNUMA*numas)
	for i := range left {
		left[i] = p.l3
	}
	var place func(k int)
	place = func(k int) {
		if k == len(sizes) {
			free := 0
			for _, l := range left {
				if l == p.l3 {
					free++
				}
			}
			idle, ok = max(idle, free), true
			return
		}
		need := (sizes[k] + p.l3 - 1) / p.l3
		var spread func(from, end, domains, cpus int)
		spread = func(from, end, domains, cpus int) {
			if domains == 0 {
				if cpus == 0 {
					place(k + 1)
				}
				return
			}
			for d := from; d < end; d++ {
				for take := min(cpus, left[d]); take > 0; take-- {
					left[d] -= take
					spread(d+1, end, domains-1, cpus-take)
					left[d] += take
				}
			}
		}
		for n := range numas {
			spread(n*p.perNUMA, (n+1)*p.perNUMA, need, sizes[k])
		}
	}
	place(0)
	return idle, ok
}

// TestNoPackingIsAboveTheBound compares the bound of a node with every possible placement of its
// pods, also such that leave no domain full.
func TestNoPackingIsAboveTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := pool{rapid.IntRange(2, 4).Draw(t, "CPUs"), rapid.IntRange(1, 3).Draw(t, "domains in a NUMA node")}
		numas := rapid.IntRange(1, 2).Draw(t, "NUMA nodes")
		sizes := rapid.SliceOfN(rapid.IntRange(1, p.l3*p.perNUMA), 0, 4).Draw(t, "pods")
		d := newDemand(p)
		d.addDomains(p.perNUMA * numas)
		for _, s := range sizes {
			d.add(s, 1)
		}
		if idle, ok := bruteForce(p, numas, sizes); ok && idle > d.free {
			t.Fatalf("%d domains can be idle, the bound is %d", idle, d.free)
		}
	})
}

// TestBoundsOfManyPods: numbers of pods as they are on whole clusters, in L3 domains of 8 and 16
// CPUs, four in each NUMA node.
func TestBoundsOfManyPods(t *testing.T) {
	for name, c := range map[string]struct {
		l3     int
		counts map[item]int
		want   int
	}{
		"none":                        {8, nil, 0},
		"two threes beside two CPUs":  {8, map[item]int{{0, 3}: 1000}, 500},
		"fives and threes in pairs":   {8, map[item]int{{0, 3}: 700, {0, 5}: 700}, 700},
		"sevens alone":                {8, map[item]int{{0, 7}: 300}, 300},
		"ones beside sevens":          {8, map[item]int{{0, 7}: 300, {0, 1}: 500}, 325},
		"elevens and fives":           {16, map[item]int{{0, 11}: 400, {0, 5}: 400}, 400},
		"three fives in a domain":     {16, map[item]int{{0, 5}: 900}, 300},
		"thirteens, threes and sixes": {16, map[item]int{{0, 13}: 100, {0, 3}: 100, {0, 6}: 200}, 200},
		"twelves in pairs":            {8, map[item]int{{1, 4}: 100}, 50},
		"twenties alone":              {8, map[item]int{{2, 4}: 100}, 100},
		"twenties with fours":         {8, map[item]int{{2, 4}: 100, {0, 4}: 60}, 100},
		"twenties with twelves":       {8, map[item]int{{2, 4}: 100, {1, 4}: 60}, 100},
	} {
		if got := binsNeeded(pool{c.l3, 4}, c.counts); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestDemandOfMixedPods: pods larger than a domain fill domains, and pods that come and go leave no
// trace.
func TestDemandOfMixedPods(t *testing.T) {
	d := newDemand(pool{8, 4})
	d.addDomains(10)
	for _, size := range []int{12, 12, 8, 3, 20} { // 12 = 8+4, 20 = 16+4: wholes 5, rests 4, 4, 4, 3
		d.add(size, 1)
	}
	if d.free != 3 || d.idle != 80-55 {
		t.Errorf("%d domains free, %d CPUs idle", d.free, d.idle)
	}
	for _, size := range []int{20, 3, 8, 12, 12} {
		d.add(size, -1)
	}
	if d.free != 10 || d.idle != 80 {
		t.Errorf("%d domains free, %d CPUs idle", d.free, d.idle)
	}
	for range 12 { // more than fit without being split
		d.add(7, 1)
	}
	if d.free != 0 {
		t.Errorf("%d domains free", d.free)
	}
}
