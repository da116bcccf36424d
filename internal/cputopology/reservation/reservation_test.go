package reservation_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

// machine returns a layout of 16 CPUs, 0-7 with their second threads 8-15, in L3 domains 0-1+8-9,
// 2-3+10-11, ...
func machine(t testing.TB, change func(*topologyv1alpha1.NodeTopology)) *allocate.Layout {
	t.Helper()
	m := machines.Machine{Name: "m", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 2, CoresPerL3: 2, L3Bytes: 1 << 20, MemoryBytesPerNUMA: 1 << 30}
	object := &topologyv1alpha1.NodeTopology{Spec: m.MustTopology().Encode()}
	if change != nil {
		change(object)
	}
	l, err := reservation.Layout(object)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// pod returns a pod with one container "c".
func pod(key string, age int, cpus string, change func(*request.ContainerResult)) reservation.Pod {
	c := request.ContainerResult{CPUs: cpuset.MustParse(cpus), Share: 1}
	if change != nil {
		change(&c)
	}
	return reservation.Pod{Key: key, Created: time.Unix(int64(1000-age), 0),
		Result: request.Result{Version: 1, Node: "n", Containers: map[string]request.ContainerResult{"c": c}}}
}

func burst(c *request.ContainerResult) { c.Share, c.Burst = 0, true }

func TestEffectiveSets(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*topologyv1alpha1.NodeTopology)
		pins     []topologyv1alpha1.KubeletPin
		pods     []reservation.Pod
		want     map[string]string // key -> CPUs of container c
		shared   string
		problems []string
	}{
		"nobody is pinned": {shared: "0-15"},
		"exclusive CPUs leave the shared pool": {
			pods: []reservation.Pod{pod("a", 1, "0,8", nil)}, want: map[string]string{"a": "0,8"}, shared: "1-7,9-15"},
		"shared CPUs stay in it": {
			pods: []reservation.Pod{pod("a", 1, "0,8", func(c *request.ContainerResult) { c.Share = 0 })}, want: map[string]string{"a": "0,8"}, shared: "0-15"},
		"a burst container has its whole L3": {
			pods: []reservation.Pod{pod("a", 1, "0,8", burst)}, want: map[string]string{"a": "0-1,8-9"}, shared: "0-15"},
		"an exclusive container takes its CPUs out of it": {
			pods: []reservation.Pod{pod("a", 1, "0,8", burst), pod("b", 0, "1", nil)}, want: map[string]string{"a": "0,8-9", "b": "1"}, shared: "0,2-15"},
		"two burst containers share a domain": {
			pods: []reservation.Pod{pod("a", 1, "0,8", burst), pod("b", 0, "1,9", burst)}, want: map[string]string{"a": "0-1,8-9", "b": "0-1,8-9"}, shared: "0-15"},
		"reserved CPUs are in no widened set and in the pool": {
			change: func(o *topologyv1alpha1.NodeTopology) { o.Status.Reserved = "1" },
			pods:   []reservation.Pod{pod("a", 1, "0,8", burst)}, want: map[string]string{"a": "0,8-9"}, shared: "0-15"},
		"what isolation keeps free is not in the pool": {
			pods: []reservation.Pod{pod("a", 1, "0", func(c *request.ContainerResult) { h := cpuset.MustParse("0,8"); c.Held = &h })},
			want: map[string]string{"a": "0"}, shared: "1-7,9-15"},
		"the kubelet's pins come first": {
			pins: []topologyv1alpha1.KubeletPin{{PodUID: "u", Container: "c", CPUs: "0,8"}},
			pods: []reservation.Pod{pod("a", 9, "8-9", nil), pod("b", 1, "1", nil)},
			want: map[string]string{"kubelet/u/c": "0,8", "b": "1"}, shared: "2-7,9-15", problems: []string{"a: "}},
		"of two that collide the older holds": {
			pods: []reservation.Pod{pod("new", 1, "0-1", nil), pod("old", 2, "1-2", nil)},
			want: map[string]string{"old": "1-2"}, shared: "0,3-15", problems: []string{"new: "}},
		"CPUs that are off line are left out": {
			change: func(o *topologyv1alpha1.NodeTopology) {
				o.Spec = machines.Machine{Name: "m", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 2, CoresPerL3: 2, MemoryBytesPerNUMA: 1 << 30, Offline: "1,3"}.MustTopology().Encode()
			},
			pods: []reservation.Pod{pod("a", 2, "0-1", nil), pod("b", 1, "3", nil)},
			want: map[string]string{"a": "0"}, shared: "2,4-15", problems: []string{"b: the node has none"}},
		"CPUs chosen on another node are not held": {
			pods:   []reservation.Pod{{Key: "a", Result: request.Result{Node: "other", Containers: map[string]request.ContainerResult{"c": {CPUs: cpuset.Of(1)}}}}},
			shared: "0-15", problems: []string{"a: its CPUs were chosen on node other"}},
		"when all is taken, everyone else runs on the reserved CPUs": {
			change: func(o *topologyv1alpha1.NodeTopology) { o.Status.Reserved = "15" },
			pods:   []reservation.Pod{pod("a", 1, "0-15", nil)}, want: map[string]string{"a": "0-15"}, shared: "15"},
		"and without any, everywhere": {
			pods: []reservation.Pod{pod("a", 1, "0-15", nil)}, want: map[string]string{"a": "0-15"}, shared: "0-15"},
	} {
		t.Run(name, func(t *testing.T) {
			s := reservation.Replay("n", machine(t, c.change), c.pins, c.pods)
			containers, shared := s.Effective()
			got := map[string]string{}
			for key, own := range containers {
				got[key] = own["c"].Set.String()
			}
			if c.want == nil {
				c.want = map[string]string{}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if shared.String() != c.shared {
				t.Errorf("the shared pool is %s, want %s", shared, c.shared)
			}
			if len(s.Problems) != len(c.problems) {
				t.Fatalf("problems: %v, want %v", s.Problems, c.problems)
			}
			for i, want := range c.problems {
				if p := s.Problems[i]; !strings.HasPrefix(p.Key+": "+p.Message, want) {
					t.Errorf("problem %q, want %q", p.Key+": "+p.Message, want)
				}
			}
		})
	}
}

// TestAllocatedIsReplayed checks that allocations, written on pods and read back in any order, give
// the same state: no problem, the same sets, and no exclusive CPU in the set of another container.
func TestAllocatedIsReplayed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := rapid.SampledFrom([]machines.Machine{machines.Intel104SNC, machines.AMD256NPS4, machines.Hybrid, machines.Offlined, machines.SMT4}).Draw(r, "machine")
		l, err := allocate.NewLayout(m.MustTopology(), cpuset.Of(0))
		if err != nil {
			r.Fatal(err)
		}
		live := allocate.NewNode("n", l)
		var al allocate.Allocator
		var pods []reservation.Pod
		for i := range rapid.IntRange(1, 30).Draw(r, "pods") {
			policy := rapid.SampledFrom([]request.Policy{{Share: 1}, {Share: 0}, {Share: 0, Burst: true}, {Share: 1, Isolation: request.IsolateCore}, {Share: 2}}).Draw(r, "policy")
			q, err := allocate.NewRequest(&request.Pod{Language: request.Lockstep, Containers: []request.Container{
				{Name: "init", Init: true, CPUs: rapid.IntRange(1, 6).Draw(r, "init"), Policy: policy},
				{Name: "c", CPUs: rapid.IntRange(1, 9).Draw(r, "cpus"), Policy: policy}}})
			if err != nil {
				r.Fatal(err)
			}
			key := fmt.Sprintf("p%02d", i)
			a, err := al.Allocate(live, key, q)
			if err != nil {
				continue
			}
			written, err := live.Result(a).Annotations(request.Lockstep, l.Topology(), nil)
			if err != nil {
				r.Fatal(err)
			}
			back, err := request.ParseResult(written[request.LockstepResult])
			if err != nil {
				r.Fatal(err)
			}
			pods = append(pods, reservation.Pod{Key: key, Result: back})
		}
		s := reservation.Replay("n", l, nil, rapid.Permutation(pods).Draw(r, "order"))
		if len(s.Problems) > 0 {
			r.Fatal(s.Problems)
		}
		if !s.Node.Idle().Equal(live.Idle()) {
			r.Fatalf("idle: %s, want %s", s.Node.Idle(), live.Idle())
		}
		containers, shared := s.Effective()
		for _, a := range live.Pods() {
			for _, c := range a.Containers {
				got := containers[a.Key][c.Name]
				if want := live.Effective(c); !c.Init && !got.Set.Equal(want) || got.Set.IsEmpty() || !got.Set.SubsetOf(want) {
					r.Fatalf("%s %s: %s, want %s", a.Key, c.Name, got.Set, want)
				}
				if !got.Exclusive {
					continue
				}
				if got.Set.Overlaps(shared) {
					r.Fatalf("%s %s: exclusive CPUs %s are in the shared pool %s", a.Key, c.Name, got.Set, shared)
				}
				for other, theirs := range containers {
					for name, o := range theirs {
						if other != a.Key && o.Set.Overlaps(got.Set) {
							r.Fatalf("%s %s runs on exclusive CPUs of %s: %s and %s", other, name, a.Key, o.Set, got.Set)
						}
					}
				}
			}
		}
	})
}

func TestLayoutNamesWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*topologyv1alpha1.NodeTopology){
		"status.reserved": func(o *topologyv1alpha1.NodeTopology) { o.Status.Reserved = "x" },
		"numa[0].cpus":    func(o *topologyv1alpha1.NodeTopology) { o.Spec.NUMA[0].CPUs = "1-0" },
		"counts":          func(o *topologyv1alpha1.NodeTopology) { o.Spec.Counts.CPUs++ },
	} {
		object := &topologyv1alpha1.NodeTopology{Spec: machines.Hybrid.MustTopology().Encode()}
		change(object)
		if _, err := reservation.Layout(object); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that names %s", err, want)
		}
	}
	if _, err := cputopology.Decode(topologyv1alpha1.NodeTopologySpec{}); err == nil {
		t.Error("an empty spec is a machine")
	}
}

// TestSharedPodsThatAreMovedHoldBoth checks that no pod gets the CPUs from which a pod that shares them
// is being moved for itself, and that the pod runs on its new CPUs only.
func TestSharedPodsThatAreMovedHoldBoth(t *testing.T) {
	l := machine(t, nil)
	from := cpuset.MustParse("0-1,8-9")
	moved := pod("moved", 2, "2-3,10-11", func(c *request.ContainerResult) { c.Share, c.From = 0, &from })
	moved.Result.Move = 1
	state := reservation.Replay("n", l, nil, []reservation.Pod{moved, pod("own", 1, "0", nil)})
	if len(state.Problems) != 1 || state.Problems[0].Key != "own" {
		t.Errorf("the problems are %+v, want that own does not get CPU 0", state.Problems)
	}
	if idle := state.Node.Idle().String(); idle != "4-7,12-15" {
		t.Errorf("idle are %s", idle)
	}
	containers, _ := state.Effective()
	if got := containers["moved"]["c"].Set.String(); got != "2-3,10-11" {
		t.Errorf("the pod runs on %s", got)
	}
	settled := moved
	settled.Result = moved.Result.Settled(1)
	state = reservation.Replay("n", l, nil, []reservation.Pod{settled, pod("own", 1, "0", nil)})
	if len(state.Problems) > 0 {
		t.Errorf("the problems are %+v after the move", state.Problems)
	}
}
