package nodecontroller

import (
	"testing"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/repack"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// TestAPlanIsContinued: the next wave has the next moves of the plan that can be made at once.
func TestAPlanIsContinued(t *testing.T) {
	l, err := allocate.NewLayout(machines.AMD256NPS4.MustTopology(), cpuset.Set{})
	if err != nil {
		t.Fatal(err)
	}
	held := func(key, cpus string) *allocate.Allocation {
		set := cpuset.MustParse(cpus)
		return &allocate.Allocation{Key: key, Containers: []allocate.ContainerCPUs{{Name: "c", CPUs: set, Held: set, Share: 1}}}
	}
	wants := func(cpus int) *movable {
		r, err := allocate.NewRequest(&request.Pod{Containers: []request.Container{{Name: "c", CPUs: cpus, Policy: request.Policy{Share: 1}}}})
		if err != nil {
			t.Fatal(err)
		}
		return &movable{request: r}
	}
	a, b := held("a", "0-1,128-129"), held("b", "8-11")
	aThere, bThere := held("a", "4-5,132-133"), held("b", "12-15")
	plan := []repack.Move{{Pod: "a", From: a, To: aThere}, {Pod: "b", From: b, To: bThere}}
	both := map[string]*movable{"a": wants(4), "b": wants(4)}
	for name, c := range map[string]struct {
		pods    []*allocate.Allocation
		movable map[string]*movable
		plan    []repack.Move
		want    int
	}{
		"nothing is left":                     {[]*allocate.Allocation{a, b}, both, nil, 0},
		"as planned":                          {[]*allocate.Allocation{a, b}, both, plan, 2},
		"the pod has ended":                   {[]*allocate.Allocation{b}, map[string]*movable{"b": wants(4)}, plan, 0},
		"the pod has other CPUs":              {[]*allocate.Allocation{held("a", "16-17,144-145"), b}, both, plan, 0},
		"the pod may no longer be moved":      {[]*allocate.Allocation{a, b}, map[string]*movable{"b": wants(4)}, plan, 0},
		"the pod was resized":                 {[]*allocate.Allocation{a, b}, map[string]*movable{"a": wants(6), "b": wants(4)}, plan, 0},
		"another pod has the CPUs":            {[]*allocate.Allocation{a, b, held("c", "5,133")}, both, plan, 0},
		"the next but one has ended":          {[]*allocate.Allocation{a}, map[string]*movable{"a": wants(4)}, plan, 1},
		"the next but one has other CPUs":     {[]*allocate.Allocation{a, held("b", "16-19")}, both, plan, 1},
		"one waits for the CPUs of the other": {[]*allocate.Allocation{a, b}, both, []repack.Move{plan[0], {Pod: "b", From: b, To: a}}, 1},
		"two may not have the same CPUs":      {[]*allocate.Allocation{a, b}, both, []repack.Move{plan[0], {Pod: "b", From: b, To: held("b", "4,6-7,12")}}, 1},
		"a pod that is moved twice waits": {[]*allocate.Allocation{a, b}, both,
			[]repack.Move{plan[0], {Pod: "a", From: aThere, To: held("a", "16-19")}, plan[1]}, 1},
	} {
		n := allocate.NewNode("n", l)
		for _, a := range c.pods {
			if err := n.Restore(a); err != nil {
				t.Fatal(err)
			}
		}
		got := 0
		if continues(n, c.movable, c.plan) {
			got = len(independent(n, c.movable, c.plan))
		}
		if got != c.want {
			t.Errorf("%s: %d moves, want %d", name, got, c.want)
		}
	}
}
