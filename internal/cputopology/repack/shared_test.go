package repack

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/sharing"
)

func shared(cpus int) *allocate.Request {
	r, err := allocate.NewRequest(&request.Pod{Containers: []request.Container{{Name: "c", CPUs: cpus}}})
	if err != nil {
		panic(err)
	}
	return r
}

func TestSharedDomainsComeTogether(t *testing.T) {
	type pod struct {
		cpus  string
		milli int64
	}
	for name, c := range map[string]struct {
		pods         []pod
		own          string // CPUs that a pod has exclusively
		stay         string
		budget       Budget
		freed, moves int
	}{
		"two little used":                   {pods: []pod{{"0-1,128-129", 1000}, {"4-5,132-133", 1000}}, freed: 1, moves: 1},
		"one alone":                         {pods: []pod{{"0-1,128-129", 1000}}},
		"full by what they request":         {pods: []pod{{"0-1,128-129", 5000}, {"4-5,132-133", 5000}}},
		"many into one":                     {pods: []pod{{"0-1,128-129", 2000}, {"4-5,132-133", 2000}, {"8-9,136-137", 2000}, {"12-13,140-141", 2000}}, freed: 3, moves: 3},
		"a pod that must stay":              {pods: []pod{{"0-1,128-129", 1000}, {"4-5,132-133", 2000}}, stay: "0", freed: 1, moves: 1},
		"both must stay":                    {pods: []pod{{"0-1,128-129", 1000}, {"4-5,132-133", 2000}}, stay: "*"},
		"a domain with CPUs of a pod alone": {pods: []pod{{"0-1,128-129", 1000}, {"4-5,132-133", 1000}}, own: "2-3", freed: 1, moves: 1},
		"the budget":                        {pods: []pod{{"0-1,128-129", 2000}, {"4-5,132-133", 2000}, {"8-9,136-137", 2000}}, budget: Budget{MovesMax: 1}, freed: 1, moves: 1},
		"other NUMA nodes":                  {pods: []pod{{"0-1,128-129", 1000}, {"64-65,192-193", 1000}}, freed: 1, moves: 1},
		"within the NUMA node only":         {pods: []pod{{"0-1,128-129", 1000}, {"64-65,192-193", 1000}}, budget: Budget{StayInNUMA: true}},
	} {
		t.Run(name, func(t *testing.T) {
			n := allocate.NewNode("n", layout(t, machines.AMD256NPS1))
			milli := map[string]int64{}
			for i, p := range c.pods {
				key := fmt.Sprint(i)
				milli[key] = p.milli
				if err := n.Restore(allocate.FromResult(key, resultOf(p.cpus))); err != nil {
					t.Fatal(err)
				}
			}
			if c.own != "" {
				pin(t, n, "own", c.own)
			}
			before := n.IdleL3()
			plan := Shared(n, func(key string) *allocate.Request {
				if key == c.stay || c.stay == "*" || key == "own" {
					return nil
				}
				return shared(n.Pod(key).CPUs().Len())
			}, func(key string) int64 { return milli[key] }, c.budget)
			if len(plan.Freed) != c.freed || len(plan.Moves) != c.moves {
				t.Fatalf("freed %v by %d moves, want %d by %d", plan.Freed, len(plan.Moves), c.freed, c.moves)
			}
			for _, m := range plan.Moves {
				n.Release(m.Pod)
				if err := n.Restore(m.To); err != nil {
					t.Fatal(err)
				}
			}
			if got := n.IdleL3() - before; got != c.freed {
				t.Errorf("%d domains are idle that were not, want %d", got, c.freed)
			}
		})
	}
}

func resultOf(cpus string) request.Result {
	return request.Result{Containers: map[string]request.ContainerResult{"c": {CPUs: cpuset.MustParse(cpus)}}}
}

// TestSharedPlansHold checks plans on random states: no domain is loaded beyond its CPUs that was not
// before, no pod is split further, and the domains listed become idle.
func TestSharedPlansHold(t *testing.T) {
	l := layout(t, machines.AMD256NPS4)
	rapid.Check(t, func(t *rapid.T) {
		n := allocate.NewNode("n", l)
		var al allocate.Allocator
		milli := map[string]int64{}
		requested := func(key string) int64 { return milli[key] }
		for i := range rapid.IntRange(1, 120).Draw(t, "pods") {
			key := fmt.Sprint(i)
			cpus := rapid.IntRange(1, 10).Draw(t, "cpus")
			if rapid.IntRange(0, 4).Draw(t, "own") == 0 {
				_, _ = al.Allocate(n, key, exclusive(cpus))
				continue
			}
			milli[key] = int64(rapid.IntRange(100, 1000*cpus).Draw(t, "requested"))
			a, err := sharing.NewState(n, requested).Plan(&al, n, key, shared(cpus), milli[key])
			if err == nil {
				err = n.Restore(a)
			}
			if err != nil {
				delete(milli, key)
			}
		}
		for _, a := range n.Pods() {
			if rapid.IntRange(0, 2).Draw(t, "leaves") > 0 {
				n.Release(a.Key)
			}
		}
		before, idle := sharing.NewState(n, requested), n.IdleL3()
		plan := Shared(n, func(key string) *allocate.Request {
			if _, shares := milli[key]; shares {
				return shared(n.Pod(key).CPUs().Len())
			}
			return nil
		}, requested, Budget{})
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
		if got := n.IdleL3() - idle; got != len(plan.Freed) {
			t.Fatalf("freed %d L3 domains, the plan says %v", got, plan.Freed)
		}
		after := sharing.NewState(n, requested)
		for i := range l.L3Domains() {
			if after.Load(i) > before.Load(i) && after.Overloaded(i) {
				t.Fatalf("domain %d has a load of %d after %v", i, after.Load(i), plan.Moves)
			}
		}
	})
}
