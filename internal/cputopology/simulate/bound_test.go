package simulate

import (
	"testing"

	"pgregory.net/rapid"
)

// fewestBins returns the smallest number of bins that items of these sizes need, by trying every
// packing. Items are placed in order, each in a bin in use or in the first empty one.
func fewestBins(size int, items []int) int {
	best := len(items)
	var place func(i int, bins []int)
	place = func(i int, bins []int) {
		if len(bins) >= best {
			return
		}
		if i == len(items) {
			best = len(bins)
			return
		}
		for b := range bins {
			if bins[b]+items[i] <= size {
				bins[b] += items[i]
				place(i+1, bins)
				bins[b] -= items[i]
			}
		}
		place(i+1, append(bins, items[i]))
	}
	place(0, nil)
	return best
}

// TestTheBoundIsTight compares the bound with every packing: it is never above the true number of
// bins, and never below it by more than one.
func TestTheBoundIsTight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 16).Draw(t, "size of a bin")
		items := rapid.SliceOfN(rapid.IntRange(1, size-1), 0, 9).Draw(t, "items")
		counts := make([]int, size)
		for _, s := range items {
			counts[s]++
		}
		bound, want := binsNeeded(counts), fewestBins(size, items)
		if bound > want || bound < want-1 {
			t.Fatalf("at least %d bins, the fewest possible are %d", bound, want)
		}
	})
}

// TestBoundsOfManyPods: numbers of pods as they are on whole clusters, in L3 domains of 8 and 16
// CPUs.
func TestBoundsOfManyPods(t *testing.T) {
	for name, c := range map[string]struct {
		size   int
		counts map[int]int
		want   int
	}{
		"none":                        {8, nil, 0},
		"two threes beside two CPUs":  {8, map[int]int{3: 1000}, 500},
		"fives and threes in pairs":   {8, map[int]int{3: 700, 5: 700}, 700},
		"sevens alone":                {8, map[int]int{7: 300}, 300},
		"ones beside sevens":          {8, map[int]int{7: 300, 1: 500}, 325},
		"elevens and fives":           {16, map[int]int{11: 400, 5: 400}, 400},
		"three fives in a domain":     {16, map[int]int{5: 900}, 300},
		"thirteens, threes and sixes": {16, map[int]int{13: 100, 3: 100, 6: 200}, 200},
	} {
		counts := make([]int, c.size)
		for s, n := range c.counts {
			counts[s] = n
		}
		if got := binsNeeded(counts); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestDemandOfMixedPods: pods larger than a domain fill domains, and pods that come and go leave no
// trace.
func TestDemandOfMixedPods(t *testing.T) {
	d := newDemand(8)
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
