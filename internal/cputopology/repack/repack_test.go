package repack

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

func layout(tb testing.TB, m machines.Machine) *allocate.Layout {
	l, err := allocate.NewLayout(m.MustTopology(), cpuset.Set{})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func exclusive(cpus int) *allocate.Request {
	r, err := allocate.NewRequest(&request.Pod{Containers: []request.Container{{Name: "c", CPUs: cpus, Policy: request.Policy{Share: 1, Bind: request.AnyCPU}}}})
	if err != nil {
		panic(err)
	}
	return r
}

func pin(tb testing.TB, n *allocate.Node, key, cpus string) {
	set := cpuset.MustParse(cpus)
	if err := n.Restore(&allocate.Allocation{Key: key, Containers: []allocate.ContainerCPUs{{Name: "c", CPUs: set, Held: set, Share: 1}}}); err != nil {
		tb.Fatal(err)
	}
}

func bySize(n *allocate.Node) func(string) *allocate.Request {
	return func(key string) *allocate.Request { return exclusive(n.Pod(key).CPUs().Len()) }
}

func TestWithin(t *testing.T) {
	l := layout(t, machines.AMD256NPS1)
	for name, c := range map[string]struct {
		pods         []string
		stay         string
		budget       Budget
		freed, moves int
	}{
		"two half-used L3 become one":         {[]string{"0-1,128-129", "4-5,132-133"}, "", Budget{}, 1, 1},
		"nothing to win":                      {[]string{"0-1,128-129"}, "", Budget{}, 0, 0},
		"three fragments into one":            {[]string{"0-1,128-129", "4,132", "8,136"}, "", Budget{}, 2, 2},
		"a pod that must stay":                {[]string{"0-1,128-129", "4-5,132-133"}, "1", Budget{}, 1, 1},
		"the budget":                          {[]string{"0-1,128-129", "4,132", "8,136"}, "", Budget{MovesMax: 1}, 1, 1},
		"too much to move for what it wins":   {[]string{"0-2,128-130", "4-6,132-134"}, "", Budget{}, 0, 0},
		"the rest of a pod over two L3":       {[]string{"0-5,128-133", "8,136"}, "", Budget{}, 1, 1},
		"odd CPUs may share a core":           {[]string{"0-1,128", "4-5,132"}, "", Budget{}, 1, 1},
		"pods that would have to share cores": {[]string{"0,128", "4-7"}, "1", Budget{}, 0, 0},
		"more cost than allowed":              {[]string{"0-1,128-129", "4-5,132-133"}, "", Budget{CostMax: 0.4}, 0, 0},
		"within the NUMA node only":           {[]string{"0-1,128-129", "64-65,192-193"}, "", Budget{StayInNUMA: true}, 0, 0},
		"to the other NUMA node":              {[]string{"0-1,128-129", "64-65,192-193"}, "", Budget{}, 1, 1},
		"in place of a smaller pod": {[]string{"0-2,128-130" /* 6 of 8 */, "4-5,132-133", "6,134" /* 6 of 8 */, "8-11,136-138" /* 7 of 8 */, "12-13,140-141" /* 4 of 8 */},
			"", Budget{}, 1, 2},
		"the pods of a full L3 fill gaps": {[]string{"0-5,128-133", "6-7,134", "135" /* with 4 of the first: full */, "8-13,136-141", /* 4 of 8 */
			"16-18,144-145" /* 5 of 8 */, "20-23,148-150" /* 7 of 8 */}, "", Budget{}, 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			n := allocate.NewNode("n", l)
			for i, p := range c.pods {
				pin(t, n, fmt.Sprint(i), p)
			}
			before := n.IdleL3()
			requests := bySize(n)
			plan := Within(n, func(key string) *allocate.Request {
				if key == c.stay {
					return nil
				}
				return requests(key)
			}, c.budget)
			if len(plan.Freed) != c.freed || len(plan.Moves) != c.moves {
				t.Fatalf("frees %v with %d moves, want %d with %d", plan.Freed, len(plan.Moves), c.freed, c.moves)
			}
			if n.IdleL3() != before {
				t.Fatal("planning changed the node")
			}
		})
	}
}

// TestPlansHold checks plans on random states: a plan can be carried out move by move in its order,
// it frees the domains it lists, and no pod is split further.
func TestPlansHold(t *testing.T) {
	var layouts []*allocate.Layout
	for _, m := range []machines.Machine{machines.AMD256NPS4, machines.Sparse, machines.Offlined, machines.Hybrid} {
		layouts = append(layouts, layout(t, m))
	}
	rapid.Check(t, func(t *rapid.T) {
		n := allocate.NewNode("n", rapid.SampledFrom(layouts).Draw(t, "machine"))
		var al allocate.Allocator
		for i, size := range rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 12, 20}), 1, 60).Draw(t, "sizes") {
			// A full node is as good a state as any.
			_, _ = al.Allocate(n, fmt.Sprint(i), exclusive(size))
		}
		for _, a := range n.Pods() {
			if rapid.IntRange(0, 2).Draw(t, "leaves") > 0 {
				n.Release(a.Key)
			}
		}
		before := n.IdleL3()
		plan := Within(n, bySize(n), Budget{})
		for _, m := range plan.Moves {
			l3, numas := n.Spans(m.From.CPUs())
			n.Release(m.Pod)
			if err := n.Restore(m.To); err != nil {
				t.Fatalf("move of %s from %s to %s: %v", m.Pod, m.From.CPUs(), m.To.CPUs(), err)
			}
			if l, u := n.Spans(m.To.CPUs()); l > l3 || u > numas || m.To.CPUs().Len() != m.From.CPUs().Len() {
				t.Fatalf("%s moved from %s to %s", m.Pod, m.From.CPUs(), m.To.CPUs())
			}
		}
		if got := n.IdleL3() - before; got != len(plan.Freed) {
			t.Fatalf("freed %d L3 domains, the plan says %v", got, plan.Freed)
		}
	})
}
