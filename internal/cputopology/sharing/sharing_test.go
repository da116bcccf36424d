package sharing

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// world is a node with what its pods request.
type world struct {
	testing.TB
	node  *allocate.Node
	al    allocate.Allocator
	milli map[string]int64
}

func newWorld(t testing.TB, reserved string) *world {
	l, err := allocate.NewLayout(machines.AMD256NPS4.MustTopology(), cpuset.MustParse(reserved))
	if err != nil {
		t.Fatal(err)
	}
	return &world{TB: t, node: allocate.NewNode("n", l), milli: map[string]int64{}}
}

func (w *world) state() *State {
	return NewState(w.node, func(key string) int64 { return w.milli[key] })
}

// asks returns a request of one container.
func asks(cpus, share int) *allocate.Request {
	r, err := allocate.NewRequest(&request.Pod{Containers: []request.Container{{Name: "c", CPUs: cpus, Policy: request.Policy{Share: share}}}})
	if err != nil {
		panic(err)
	}
	return r
}

// add places a pod that requests milli and may use cpus CPUs.
func (w *world) add(key string, milli int64, cpus int) *allocate.Allocation {
	w.Helper()
	w.milli[key] = milli
	a, err := w.state().Plan(&w.al, w.node, key, asks(cpus, 0), milli)
	if err == nil {
		err = w.node.Restore(a)
	}
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// TestManyPodsThatMayUseMoreLeaveRoom is the case of 100 pods that request 1 CPU and may use 4, on 256
// CPUs: an exclusive pod finds CPUs, whole domains among them.
func TestManyPodsThatMayUseMoreLeaveRoom(t *testing.T) {
	w := newWorld(t, "")
	for i := range 100 {
		a := w.add(fmt.Sprint(i), 1000, 4)
		if l3, numas := w.node.Spans(a.CPUs()); l3 != 1 || numas != 1 {
			t.Errorf("pod %d has CPUs %s", i, a.CPUs())
		}
	}
	// 100 CPUs are 13 domains of 8.
	if got := w.node.IdleL3(); got != 32-13 {
		t.Errorf("%d domains are idle, want 19", got)
	}
	for i := range 19 {
		if _, err := w.al.Allocate(w.node, fmt.Sprint("own", i), asks(8, 1)); err != nil {
			t.Fatalf("exclusive pod %d: %v", i, err)
		}
	}
	// Domains that their pods leave are idle again.
	for i := range 100 {
		w.node.Release(fmt.Sprint(i))
	}
	if got := w.node.IdleL3(); got != 13 {
		t.Errorf("%d domains are idle, want 13", got)
	}
}

func TestSharedDomainsGrow(t *testing.T) {
	w := newWorld(t, "0-1,128-129")
	first := w.add("first", 4000, 4).CPUs()
	if first.Overlaps(cpuset.MustParse("0-3,128-131")) {
		t.Errorf("CPUs %s are in the domain of the reserved CPUs, which is not idle", first)
	}
	if second := w.add("second", 4000, 4).CPUs(); second.Overlaps(first) || !sameL3(w.node, first, second) {
		t.Errorf("CPUs %s, want the rest of the domain of %s", second, first)
	}
	third := w.add("third", 500, 4).CPUs()
	if sameL3(w.node, first, third) {
		t.Errorf("CPUs %s are in the domain of %s, of which all is requested", third, first)
	}
	if _, numas := w.node.Spans(first.Union(third)); numas != 1 {
		t.Errorf("CPUs %s are not in the NUMA node of %s", third, first)
	}
	// A resize that requests more leaves no room.
	w.milli["third"] = 7800
	if fourth := w.add("fourth", 500, 2).CPUs(); sameL3(w.node, fourth, third) {
		t.Errorf("CPUs %s are in the domain of %s, which was resized", fourth, third)
	}
	// A pod larger than a domain gets whole idle ones, near each other.
	large := w.add("large", 9000, 12).CPUs()
	if l3, numas := w.node.Spans(large); l3 != 2 || numas != 1 {
		t.Errorf("the large pod has CPUs %s", large)
	}
}

func sameL3(n *allocate.Node, a, b cpuset.Set) bool {
	l3, _ := n.Spans(a.Union(b))
	return l3 == 1
}

// TestRankIsWhatPlanDoes checks, in random states, that a node whose rank promises a place gives one
// without a domain more than said, and that no domain is loaded beyond its CPUs by it.
func TestRankIsWhatPlanDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := allocate.NewLayout(machines.AMD256NPS1.MustTopology(), cpuset.MustParse(""))
		if err != nil {
			t.Fatal(err)
		}
		n := allocate.NewNode("n", l)
		var al allocate.Allocator
		milli := map[string]int64{}
		requested := func(key string) int64 { return milli[key] }
		for i := range rapid.IntRange(0, 150).Draw(t, "pods") {
			key := fmt.Sprint(i)
			cpus := rapid.IntRange(1, 8).Draw(t, "cpus")
			if rapid.IntRange(0, 3).Draw(t, "own") == 0 {
				_, _ = al.Allocate(n, key, asks(cpus, 1))
				continue
			}
			milli[key] = int64(rapid.IntRange(0, 1000*cpus).Draw(t, "requested"))
			s := NewState(n, requested)
			rank, before := s.Rank(milli[key], cpus), n.IdleL3()
			a, err := s.Plan(&al, n, key, asks(cpus, 0), milli[key])
			if err == nil {
				err = n.Restore(a)
			}
			if err != nil {
				if rank.Grows < 2 {
					t.Fatalf("rank %+v, and no place: %v", rank, err)
				}
				delete(milli, key)
				continue
			}
			if used := before - n.IdleL3(); rank.Grows < 2 && used != rank.Grows {
				t.Fatalf("rank %+v, and %d idle domains were used for CPUs %s", rank, used, a.CPUs())
			}
			if l3, _ := n.Spans(a.CPUs()); rank.Grows < 2 && l3 != 1 {
				t.Fatalf("rank %+v, and CPUs %s", rank, a.CPUs())
			}
			after := NewState(n, requested)
			for d := range after.domains {
				if rank.Grows < 2 && after.Load(d) > s.Load(d) && after.Overloaded(d) {
					t.Fatalf("domain %d has a load of %d", d, after.Load(d))
				}
			}
		}
	})
}
