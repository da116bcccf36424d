package repack

import (
	"fmt"
	"maps"
	"slices"
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
// it frees the domains it lists, no pod is split further, and none is moved twice.
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
		moved := map[string]bool{}
		for _, m := range plan.Moves {
			if moved[m.Pod] {
				t.Fatalf("%s is moved twice", m.Pod)
			}
			moved[m.Pod] = true
			l3, numas := n.Spans(m.From.CPUs())
			n.Release(m.Pod)
			if err := n.Restore(m.To); err != nil {
				t.Fatalf("move of %s from %s to %s: %v", m.Pod, m.From.CPUs(), m.To.CPUs(), err)
			}
			if l, u := n.Spans(m.To.CPUs()); l > l3 || u > numas || m.To.CPUs().Len() != m.From.CPUs().Len() {
				t.Fatalf("%s moved from %s to %s", m.Pod, m.From.CPUs(), m.To.CPUs())
			}
		}
		for _, f := range plan.Freed {
			if !f.SubsetOf(n.Idle()) {
				t.Fatalf("CPUs %s are not idle", f)
			}
		}
		if got := n.IdleL3() - before; got != len(plan.Freed) {
			t.Fatalf("freed %d L3 domains, the plan says %v", got, plan.Freed)
		}
	})
}

// TestIdleDomainsComeTogether: on a node that is nearly full, idle L3 domains in different NUMA nodes
// are brought into one, if a pod of the largest size has room in none.
func TestIdleDomainsComeTogether(t *testing.T) {
	l := layout(t, machines.AMD256NPS4)
	domains, numa := l.L3Domains(), l.NUMAOfL3()
	most := func(n *allocate.Node) int {
		idle := map[int]int{}
		for d, cpus := range n.IdlePerL3() {
			if cpus == domains[d].Len() {
				idle[numa[d]]++
			}
		}
		return slices.Max(append(slices.Collect(maps.Values(idle)), 0))
	}
	for name, c := range map[string]struct {
		idle     []int // L3 domains, four in each NUMA node
		large    bool  // a pod has two L3 domains
		budget   Budget
		together int
	}{
		"two are brought together":               {[]int{1, 5}, true, Budget{}, 2},
		"three, of which two suffice":            {[]int{1, 5, 9}, true, Budget{}, 2},
		"they are together already":              {[]int{1, 2, 9}, true, Budget{}, 2},
		"no pod needs two":                       {[]int{1, 5}, false, Budget{}, 1},
		"pods stay in their NUMA nodes":          {[]int{1, 5}, true, Budget{StayInNUMA: true}, 1},
		"the node has room, more than an eighth": {[]int{1, 5, 9, 13, 17}, true, Budget{}, 1},
		"no move is left":                        {[]int{1, 5}, true, Budget{MovesMax: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := allocate.NewNode("n", l)
			for d := range domains {
				ids := domains[d].IDs()
				switch {
				case slices.Contains(c.idle, d):
				case c.large && d == 30:
					pin(t, n, "large", domains[30].Union(domains[31]).String())
				case c.large && d == 31:
				default: // two pods of a half each
					pin(t, n, fmt.Sprint(d, "a"), cpuset.Of(ids[:4]...).String())
					pin(t, n, fmt.Sprint(d, "b"), cpuset.Of(ids[4:]...).String())
				}
			}
			before := n.IdleL3()
			plan := Within(n, bySize(n), c.budget)
			if len(plan.Freed) != 0 {
				t.Errorf("frees %v", plan.Freed)
			}
			for _, m := range plan.Moves {
				n.Release(m.Pod)
				if err := n.Restore(m.To); err != nil {
					t.Fatal(err)
				}
			}
			if got := most(n); got != c.together || n.IdleL3() != before {
				t.Errorf("%d idle domains in one NUMA node after %d moves, want %d; %d idle in all, want %d", got, len(plan.Moves), c.together, n.IdleL3(), before)
			}
		})
	}
}
