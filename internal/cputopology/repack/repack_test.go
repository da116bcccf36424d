package repack

import (
	"fmt"
	"maps"
	"math/rand/v2"
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

// TestPlansHold checks plans on random states: a plan can be carried out move by move in its order, each
// from where the pod then is, so that it can be stopped after any; it frees the domains it lists; and no
// pod is ever split further, or shares more cores, than before. A plan has no more moves and costs no more than
// its budget allows.
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
		budget := Budget{MovesMax: rapid.SampledFrom([]int{0, 0, 1, 5}).Draw(t, "moves"), StayInNUMA: rapid.Bool().Draw(t, "stay in NUMA node")}
		plan := Within(n, bySize(n), budget)
		if budget.MovesMax > 0 && len(plan.Moves) > budget.MovesMax {
			t.Fatalf("%d moves of at most %d", len(plan.Moves), budget.MovesMax)
		}
		moved := 0
		for _, m := range plan.Moves {
			if present := n.Pod(m.Pod).CPUs(); !present.Equal(m.From.CPUs()) {
				t.Fatalf("%s is moved from %s, and is on %s", m.Pod, m.From.CPUs(), present)
			}
			r := exclusive(m.From.CPUs().Len())
			l3, numas := n.Spans(m.From.CPUs())
			company := n.Company(r, m.From.CPUs())
			moved += m.To.CPUs().Minus(m.From.CPUs()).Len()
			if budget.StayInNUMA && !numaNodes(n, m.To.CPUs()).SubsetOf(numaNodes(n, m.From.CPUs())) {
				t.Fatalf("%s moved from %s to %s, another NUMA node", m.Pod, m.From.CPUs(), m.To.CPUs())
			}
			n.Release(m.Pod)
			if err := n.Restore(m.To); err != nil {
				t.Fatalf("move of %s from %s to %s: %v", m.Pod, m.From.CPUs(), m.To.CPUs(), err)
			}
			if l, u := n.Spans(m.To.CPUs()); l > l3 || u > numas || m.To.CPUs().Len() != m.From.CPUs().Len() {
				t.Fatalf("%s moved from %s to %s", m.Pod, m.From.CPUs(), m.To.CPUs())
			}
			if n.Company(r, m.To.CPUs()) > company {
				t.Fatalf("%s moved from %s to %s, and shares more cores", m.Pod, m.From.CPUs(), m.To.CPUs())
			}
		}
		if plan.Cost < moved || plan.Cost > crossNUMA*moved {
			t.Fatalf("%d CPUs are moved, the plan says %d", moved, plan.Cost)
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

// numaNodes returns the NUMA nodes of CPUs.
func numaNodes(n *allocate.Node, cpus cpuset.Set) cpuset.Set {
	var ids []int
	for d, domain := range n.Layout().L3Domains() {
		if domain.Overlaps(cpus) {
			ids = append(ids, n.Layout().NUMAOfL3()[d])
		}
	}
	return cpuset.Of(ids...)
}

// reachable returns the most L3 domains that can be idle after any sequence of moves, by trying all, and
// the number of states. at has the CPUs of each pod in each domain.
func reachable(size int, numa []int, at [][]int) (most, states int) {
	key := func(at [][]int) string { return fmt.Sprint(at) }
	seen := map[string]bool{key(at): true}
	todo := [][][]int{at}
	spans := func(held []int) (l3, numas int) {
		in := map[int]bool{}
		for d, n := range held {
			if n > 0 {
				l3++
				in[numa[d]] = true
			}
		}
		return l3, len(in)
	}
	for len(todo) > 0 {
		at, todo = todo[len(todo)-1], todo[:len(todo)-1]
		idle, whole := make([]int, len(numa)), 0
		for d := range numa {
			idle[d] = size
			for _, held := range at {
				idle[d] -= held[d]
			}
			if idle[d] == size {
				whole++
			}
		}
		most = max(most, whole)
		for i, held := range at {
			cpus := 0
			for _, n := range held {
				cpus += n
			}
			l3, numas := spans(held)
			to := make([]int, len(numa))
			var fill func(d, left int)
			fill = func(d, left int) {
				if left == 0 {
					if l, u := spans(to); l > l3 || u > numas {
						return
					}
					next := slices.Clone(at)
					next[i] = slices.Clone(to)
					if k := key(next); !seen[k] {
						seen[k] = true
						todo = append(todo, next)
					}
					return
				}
				if d == len(numa) {
					return
				}
				for n := range min(left, idle[d]+held[d]) + 1 {
					to[d] = n
					fill(d+1, left-n)
				}
				to[d] = 0
			}
			fill(0, cpus)
		}
	}
	return most, len(seen)
}

// TestPlansReachWhatMovesCan compares plans with every sequence of moves on small machines: they free as many
// domains as moves can.
func TestPlansReachWhatMovesCan(t *testing.T) {
	l := layout(t, machines.Machine{Name: "m", Sockets: 1, NUMAPerSocket: 2, CoresPerSocket: 16, Threads: 1, CoresPerL3: 4, L3Bytes: 1 << 20, MemoryBytesPerNUMA: 1 << 30})
	rng := rand.New(rand.NewPCG(1, 2))
	could, did := 0, 0
	for range 500 {
		n := allocate.NewNode("n", l)
		var al allocate.Allocator
		for i := range 12 {
			_, _ = al.Allocate(n, fmt.Sprint(i), exclusive([]int{1, 2, 3, 3, 5, 5, 6}[rng.IntN(7)]))
		}
		for i, a := range n.Pods() {
			if i > 6 || rng.IntN(3) == 0 {
				n.Release(a.Key)
			}
		}
		var at [][]int
		for _, a := range n.Pods() {
			held := make([]int, len(l.L3Domains()))
			l.PerL3(a.CPUs(), held)
			at = append(at, held)
		}
		before := n.IdleL3()
		most, _ := reachable(4, l.NUMAOfL3(), at)
		got := before + len(Within(n, bySize(n), Budget{CostMax: 100}).Freed)
		if got > most {
			t.Fatalf("%v: %d domains idle, moves lead to %d", at, got, most)
		}
		could += most - before
		did += got - before
		if got < most {
			t.Logf("%v: %d domains idle, moves lead to %d", at, got, most)
		}
	}
	if did < could {
		t.Errorf("plans free %d domains, moves can free %d", did, could)
	}
}

// TestIdleDomainsComeTogether: on a node that is nearly full, idle L3 domains in different NUMA nodes
// are brought into one, if there are pods of more than a domain.
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
		"two are brought together":                      {[]int{1, 5}, true, Budget{}, 2},
		"three":                                         {[]int{1, 5, 9}, true, Budget{}, 3},
		"they are together already":                     {[]int{1, 2}, true, Budget{}, 2},
		"no pod needs two":                              {[]int{1, 5}, false, Budget{}, 1},
		"pods stay in their NUMA nodes":                 {[]int{1, 5}, true, Budget{StayInNUMA: true}, 1},
		"the node has room, more than an eighth":        {[]int{1, 5, 9, 13, 17}, true, Budget{}, 1},
		"the largest pod has room, more than a twelfth": {[]int{1, 2, 5}, true, Budget{}, 2},
		"no move is left":                               {[]int{1, 5}, true, Budget{MovesMax: 1}, 1},
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

// TestAPlanIsComplete: once gaps have come together, what that allows is planned, too, so a second plan
// has no moves.
func TestAPlanIsComplete(t *testing.T) {
	l := layout(t, machines.AMD256NPS4)
	rng := rand.New(rand.NewPCG(3, 4))
	moves := 0
	for range 12 {
		n := allocate.NewNode("n", l)
		var al allocate.Allocator
		for i := 0; n.IdleCPUs() > 4; i++ {
			_, _ = al.Allocate(n, fmt.Sprint(i), exclusive(min(6+rng.IntN(9), n.IdleCPUs())))
		}
		for n.IdleCPUs() < 20 {
			pods := n.Pods()
			n.Release(pods[rng.IntN(len(pods))].Key)
		}
		for again := range 2 {
			plan := Within(n, bySize(n), Budget{})
			if again > 0 && len(plan.Moves) > 0 {
				t.Errorf("a second plan has %d moves and frees %v", len(plan.Moves), plan.Freed)
			}
			moves += len(plan.Moves)
			for _, m := range plan.Moves {
				n.Release(m.Pod)
				if err := n.Restore(m.To); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if moves == 0 {
		t.Error("no plan has moves")
	}
}
