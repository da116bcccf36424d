package nodecontroller

import (
	"testing"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/repack"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// TestAPlanIsContinued: the next wave follows the plan, unless the next move of it can no longer be made.
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
	rest := []repack.Move{{Pod: "a", From: held("a", "0-1,128-129"), To: held("a", "4-5,132-133")}, {Pod: "b"}}
	for name, c := range map[string]struct {
		pods    []*allocate.Allocation
		movable map[string]*movable
		rest    []repack.Move
		want    bool
	}{
		"nothing is left":                {[]*allocate.Allocation{held("a", "0-1,128-129")}, map[string]*movable{"a": wants(4)}, nil, false},
		"as planned":                     {[]*allocate.Allocation{held("a", "0-1,128-129")}, map[string]*movable{"a": wants(4)}, rest, true},
		"the pod has ended":              {nil, map[string]*movable{"a": wants(4)}, rest, false},
		"the pod has other CPUs":         {[]*allocate.Allocation{held("a", "8-9,136-137")}, map[string]*movable{"a": wants(4)}, rest, false},
		"the pod may no longer be moved": {[]*allocate.Allocation{held("a", "0-1,128-129")}, nil, rest, false},
		"the pod was resized":            {[]*allocate.Allocation{held("a", "0-1,128-129")}, map[string]*movable{"a": wants(6)}, rest, false},
		"another pod has the CPUs":       {[]*allocate.Allocation{held("a", "0-1,128-129"), held("c", "5,133")}, map[string]*movable{"a": wants(4)}, rest, false},
	} {
		n := allocate.NewNode("n", l)
		for _, a := range c.pods {
			if err := n.Restore(a); err != nil {
				t.Fatal(err)
			}
		}
		if got := continues(n, c.movable, c.rest); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
