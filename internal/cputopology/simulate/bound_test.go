package simulate

import (
	"testing"

	"pgregory.net/rapid"
)

// mostIdle returns the largest number of idle domains on NUMA nodes, by trying every distribution of
// the pods' CPUs over the domains that their kinds allow.
func mostIdle(p pool, numas int, pods []kind) (idle int, ok bool) {
	left := make([]int, p.perNUMA*numas)
	for i := range left {
		left[i] = p.l3
	}
	var place func(k int)
	place = func(k int) {
		if k == len(pods) {
			free := 0
			for _, l := range left {
				if l == p.l3 {
					free++
				}
			}
			idle, ok = max(idle, free), true
			return
		}
		// at is the NUMA node of the last domain, -1 for none.
		var spread func(from, at, domains, numas, cpus int)
		spread = func(from, at, domains, numas, cpus int) {
			if cpus == 0 {
				place(k + 1)
				return
			}
			if cpus > domains*p.l3 {
				return
			}
			for d := from; d < len(left); d++ {
				more := numas
				if d/p.perNUMA != at {
					more--
				}
				for take := min(cpus, left[d]); take > 0 && more >= 0; take-- {
					left[d] -= take
					spread(d+1, d/p.perNUMA, domains-1, more, cpus-take)
					left[d] += take
				}
			}
		}
		if pods[k].domains > 0 {
			spread(0, -1, pods[k].domains, pods[k].numas, pods[k].cpus)
			return
		}
		spread(0, -1, (pods[k].cpus+p.l3-1)/p.l3, 1, pods[k].cpus)
	}
	place(0)
	return idle, ok
}

// TestTheBoundIsTight compares the bound of a node with every possible placement of its pods, also
// such that leave no domain full: none leaves more domains idle, and nearly always one reaches it. With
// the search for a packing, one always reaches it. Pods may be split into more domains than they need,
// and over NUMA nodes.
func TestTheBoundIsTight(t *testing.T) {
	draws, equal := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := pool{rapid.IntRange(1, 4).Draw(t, "CPUs"), rapid.IntRange(1, 3).Draw(t, "domains in a NUMA node")}
		d := newDemand(p)
		d.addNUMA(rapid.IntRange(1, 2).Draw(t, "NUMA nodes"))
		var pods []kind
		for range rapid.IntRange(0, 4).Draw(t, "pods") {
			cpus := rapid.IntRange(1, p.l3*p.perNUMA*d.numas).Draw(t, "CPUs of a pod")
			least := (cpus + p.l3 - 1) / p.l3
			k := p.kindOf(cpus, least+rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "further domains"),
				rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "NUMA nodes of a pod"))
			pods = append(pods, k)
			d.add(k, 1)
		}
		most, ok := mostIdle(p, d.numas, pods)
		if !ok {
			return
		}
		bound := d.mostFree()
		if bound < most || bound > most+1 {
			t.Fatalf("%v on %d NUMA nodes of %+v: %d domains can be idle, the bound is %d", pods, d.numas, p, most, bound)
		}
		draws++
		if bound == most {
			equal++
		}
		d.exact, d.known = true, false
		if exact := d.mostFree(); exact != most {
			t.Fatalf("%v on %d NUMA nodes of %+v: %d domains can be idle, the search says %d", pods, d.numas, p, most, exact)
		}
	})
	if equal < draws*9/10 {
		t.Errorf("equal in %d of %d draws only", equal, draws)
	}
}

// TestPartsStayInTheirNUMANodes: two pods leave a CPU each, in two NUMA nodes. A pod of two parts fills
// these gaps only if it is in two NUMA nodes.
func TestPartsStayInTheirNUMANodes(t *testing.T) {
	for numas, want := range map[int]int{1: 1, 2: 2} {
		d := newDemand(pool{4, 2})
		d.exact = true
		d.addNUMA(3)
		d.add(kind{cpus: 7}, 2)
		d.add(kind{2, 2, numas}, 1)
		if got := d.mostFree(); got != want {
			t.Errorf("a pod in %d NUMA nodes: %d domains can be idle, want %d", numas, got, want)
		}
	}
}

// TestBoundsOfManyPods: numbers of pods as they are on whole clusters, in L3 domains of 8 and 16
// CPUs, four in each of 500 NUMA nodes.
func TestBoundsOfManyPods(t *testing.T) {
	for name, c := range map[string]struct {
		l3   int
		pods map[kind]int
		want int // domains in use
	}{
		"none":                        {8, nil, 0},
		"two threes beside two CPUs":  {8, map[kind]int{{cpus: 3}: 1000}, 500},
		"fives and threes in pairs":   {8, map[kind]int{{cpus: 3}: 700, {cpus: 5}: 700}, 700},
		"sevens alone":                {8, map[kind]int{{cpus: 7}: 300}, 300},
		"ones beside sevens":          {8, map[kind]int{{cpus: 7}: 300, {cpus: 1}: 500}, 325},
		"elevens and fives":           {16, map[kind]int{{cpus: 11}: 400, {cpus: 5}: 400}, 400},
		"three fives in a domain":     {16, map[kind]int{{cpus: 5}: 900}, 300},
		"thirteens, threes and sixes": {16, map[kind]int{{cpus: 13}: 100, {cpus: 3}: 100, {cpus: 6}: 200}, 200},
		"twelves in pairs":            {8, map[kind]int{{cpus: 12}: 100}, 150},
		"twenties alone":              {8, map[kind]int{{cpus: 20}: 100}, 300},
		"twenties with fours":         {8, map[kind]int{{cpus: 20}: 100, {cpus: 4}: 60}, 300},
		"twenties with twelves":       {8, map[kind]int{{cpus: 20}: 100, {cpus: 12}: 60}, 360},
		"three tens fill a NUMA node": {8, map[kind]int{{cpus: 10}: 1500}, 2000},
		"more than fit":               {8, map[kind]int{{cpus: 10}: 1501}, 2001},
		"sevens cut in two fill gaps": {8, map[kind]int{{cpus: 5}: 300, {7, 2, 2}: 100}, 350},
		"larger than a NUMA node":     {8, map[kind]int{{36, 5, 2}: 100, {cpus: 4}: 100}, 500},
	} {
		d := newDemand(pool{c.l3, 4})
		d.addNUMA(500)
		for k, n := range c.pods {
			d.add(k, n)
		}
		if got := max(0, 2000-c.want); d.mostFree() != got {
			t.Errorf("%s: %d domains can be idle, want %d", name, d.mostFree(), got)
		}
	}
}

// TestDemandOfMixedPods: pods larger than a domain fill domains, and pods that come and go leave no
// trace.
func TestDemandOfMixedPods(t *testing.T) {
	d := newDemand(pool{8, 4})
	d.addNUMA(3)
	sizes := []int{12, 12, 8, 3, 20} // 12 = 8+4, 20 = 16+4: they fill 5; of the rests 4, 4, 4, 3 two share a domain each
	for _, size := range sizes {
		d.add(kind{cpus: size}, 1)
	}
	if d.mostFree() != 5 {
		t.Errorf("%d domains free", d.mostFree())
	}
	for _, size := range sizes {
		d.add(kind{cpus: size}, -1)
	}
	if d.mostFree() != 12 || len(d.pods) != 0 {
		t.Errorf("%d domains free, %v", d.mostFree(), d.pods)
	}
	d.add(kind{cpus: 7}, 14) // more than fit without being split
	if d.mostFree() != 0 {
		t.Errorf("%d domains free", d.mostFree())
	}
	if k := d.kindOf(12, 2, 1); k != (kind{cpus: 12}) {
		t.Errorf("%+v", k)
	}
	if k := d.kindOf(12, 2, 2); k != (kind{12, 2, 2}) {
		t.Errorf("over NUMA nodes: %+v", k)
	}
}
