package place

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func TestGangs(t *testing.T) {
	one, two := pod("cpu", "1"), pod("cpu", "2")
	for name, tc := range map[string]struct {
		nodes, cpus int
		gang        func(c cluster) Gang
		placed      []int // pods per demand; nil when it must not fit
	}{
		"everything fits": {2, 4, func(c cluster) Gang { return c.gang(8, one) }, []int{8}},
		"one too many":    {2, 4, func(c cluster) Gang { return c.gang(9, one) }, nil},
		"no room for a demand's minimum, though the other fits": {2, 4, func(c cluster) Gang {
			return Gang{Demands: []Demand{{c.class(one), 4, 4}, {c.class(two), 3, 3}}}
		}, nil},
		"above the minimum as many as fit": {2, 4, func(c cluster) Gang {
			return Gang{Demands: []Demand{{c.class(one), 20, 2}}}
		}, []int{8}},
		"minimums first, then what is above them, in order": {2, 4, func(c cluster) Gang {
			return Gang{Demands: []Demand{{c.class(one), 20, 0}, {c.class(two), 2, 2}}}
		}, []int{4, 2}},
		"the gang's minimum is more than its demands'": {2, 4, func(c cluster) Gang {
			return Gang{MinMember: 6, Demands: []Demand{{c.class(two), 4, 1}, {c.class(one), 10, 1}}}
		}, []int{1, 6}},
		"the gang's minimum does not fit": {2, 4, func(c cluster) Gang {
			return Gang{MinMember: 9, Demands: []Demand{{c.class(one), 10, 0}}}
		}, nil},
		"the gang's minimum is more than it has": {2, 4, func(c cluster) Gang {
			return Gang{MinMember: 3, Demands: []Demand{{c.class(one), 2, 0}}}
		}, nil},
		"an elastic gang that does not fit at all holds nothing": {2, 4, func(c cluster) Gang {
			return Gang{Demands: []Demand{{c.class(pod("cpu", "5")), 3, 0}}}
		}, []int{0}},
		"no demands": {1, 1, func(cluster) Gang { return Gang{} }, []int{}},
		"large pods keep their room from small ones": {2, 4, func(c cluster) Gang {
			return Gang{Demands: []Demand{{c.class(one), 4, 4}, {c.class(pod("cpu", "4")), 1, 1}}}
		}, []int{4, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.uniform(tc.nodes, "cpu", string(rune('0'+tc.cpus)))
			before := state(c.Snapshot)
			d := Place(c.Snapshot, tc.gang(c), Options{})
			if (d.Shortage == nil) != (tc.placed != nil) || (d.Placed == nil) != (tc.placed == nil) {
				t.Fatalf("%+v", d)
			}
			if d.Shortage != nil {
				if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
					t.Error("snapshot (-before +after):", diff)
				}
				return
			}
			counts := []int{}
			for _, p := range d.Placed {
				counts = append(counts, len(p))
			}
			if diff := cmp.Diff(tc.placed, counts); diff != "" {
				t.Error("placed (-want +got):", diff)
			}
		})
	}
}

// TestWhatRefusesPodsIsNamed checks the texts of shortages of nodes, not of resources. Those without
// figures stay the same while nodes become full and other nodes join.
func TestWhatRefusesPodsIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		s               Shortage
		stable, counted string
	}{
		"two causes": {
			Shortage{Wanted: 2, Rejected: map[string]int{RefusedTaint: 3, RefusedAffinity: 12, "Insufficient cpu": 4, RefusedPods: 1}},
			"too few nodes accept 2 pods: node(s) didn't match Pod's node affinity/selector, node(s) had untolerated taint(s)",
			"too few nodes accept 2 pods: 12 node(s) didn't match Pod's node affinity/selector, 3 node(s) had untolerated taint(s)",
		},
		"the same causes, and other figures": {
			Shortage{Wanted: 2, Fit: 1, Rejected: map[string]int{RefusedTaint: 1, RefusedAffinity: 1}},
			"too few nodes accept 2 pods: node(s) didn't match Pod's node affinity/selector, node(s) had untolerated taint(s)",
			"too few nodes accept 2 pods: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s)",
		},
		"a cause that is the pod's": {
			Shortage{Wanted: 1, Rejected: map[string]int{`persistentvolumeclaim "data" not found`: 4}},
			`no node accepts 1 pod: persistentvolumeclaim "data" not found`, `no node accepts 1 pod: persistentvolumeclaim "data" not found`,
		},
		"no nodes": {Shortage{Wanted: 1}, "no node accepts 1 pod: there are no nodes for pods", "no node accepts 1 pod: there are no nodes for pods"},
		"a resource is short": {
			Shortage{Wanted: 1, Resource: "cpu", Missing: 1000, Rejected: map[string]int{RefusedTaint: 1, "Insufficient cpu": 1}},
			"not enough cpu for 1 pod", "not enough cpu for 1 pod",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.s.Stable(); got != tc.stable {
				t.Errorf("stable: %s", got)
			}
			if got := tc.s.Counted(); got != tc.counted {
				t.Errorf("counted: %s", got)
			}
		})
	}
}

func TestShortages(t *testing.T) {
	tainted := func(c cluster, name string, pairs ...string) {
		c.object(&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}}}, name, pairs...)
	}
	for name, tc := range map[string]struct {
		nodes func(c cluster)
		gang  func(c cluster) Gang
		want  Shortage
		text  string
	}{
		"cpu is short": {
			func(c cluster) { c.uniform(2, "cpu", "4", "memory", "8Gi") },
			func(c cluster) Gang { return c.gang(10, pod("cpu", "1", "memory", "1Gi")) },
			Shortage{Wanted: 10, Fit: 8, Resource: "cpu", Missing: 2000, Rejected: map[string]int{"Insufficient cpu": 2}},
			"8 of 10 pods fit, 2 of cpu missing; nodes: 2 Insufficient cpu",
		},
		"what is most short is told": {
			func(c cluster) { c.uniform(2, "cpu", "4", "memory", "8Gi") },
			func(c cluster) Gang { return c.gang(10, pod("cpu", "1", "memory", "4Gi")) },
			Shortage{Wanted: 10, Fit: 4, Resource: "memory", Missing: 24 << 30, Rejected: map[string]int{"Insufficient memory": 2}},
			"4 of 10 pods fit, 24Gi of memory missing; nodes: 2 Insufficient memory",
		},
		"an extended resource is short": {
			func(c cluster) {
				c.node("a", "cpu", "4", "example.com/gpu", "2")
				c.node("b", "cpu", "4")
			},
			func(c cluster) Gang { return c.gang(3, pod("cpu", "1", "example.com/gpu", "1")) },
			Shortage{Wanted: 3, Fit: 2, Resource: "example.com/gpu", Missing: 1, Rejected: map[string]int{"Insufficient example.com/gpu": 2}},
			"2 of 3 pods fit, 1 of example.com/gpu missing; nodes: 2 Insufficient example.com/gpu",
		},
		"pods are short": {
			func(c cluster) { c.node("a", "pods", "2") },
			func(c cluster) Gang { return c.gang(3, pod()) },
			Shortage{Wanted: 3, Fit: 2, Resource: "pods", Missing: 1, Rejected: map[string]int{"Too many pods": 1}},
			"2 of 3 pods fit, 1 of pods missing; nodes: 1 Too many pods",
		},
		"enough in all, but not on one node": {
			func(c cluster) { c.uniform(4, "cpu", "3") },
			func(c cluster) Gang { return c.gang(5, pod("cpu", "2")) },
			Shortage{Wanted: 5, Fit: 4, Resource: "cpu", Missing: 2000, Fragmented: true, Rejected: map[string]int{"Insufficient cpu": 4}},
			"4 of 5 pods fit, 2 of cpu missing; nodes: 4 Insufficient cpu",
		},
		"a pod that is larger than any node": {
			func(c cluster) { c.uniform(10, "cpu", "4") },
			func(c cluster) Gang { return c.gang(1, pod("cpu", "6")) },
			Shortage{Wanted: 1, Resource: "cpu", Missing: 2000, TooLarge: true, Rejected: map[string]int{"Insufficient cpu": 10}},
			"0 of 1 pods fit, 2 of cpu missing; nodes: 10 Insufficient cpu",
		},
		"nodes that other filters refuse have nothing to give": {
			func(c cluster) {
				tainted(c, "a", "cpu", "64")
				c.node("b", "cpu", "1")
			},
			func(c cluster) Gang { return c.gang(2, pod("cpu", "1")) },
			Shortage{Wanted: 2, Fit: 1, Resource: "cpu", Missing: 1000, Rejected: map[string]int{"Insufficient cpu": 1, RefusedTaint: 1}},
			"1 of 2 pods fit, 1 of cpu missing; nodes: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)",
		},
		"no node passes the other filters": {
			func(c cluster) { tainted(c, "a", "cpu", "64") },
			func(c cluster) Gang { return c.gang(2, pod("cpu", "1")) },
			Shortage{Wanted: 2, Rejected: map[string]int{RefusedTaint: 1}},
			"0 of 2 pods fit; nodes: 1 node(s) had untolerated taint(s)",
		},
		"no nodes": {
			func(c cluster) {},
			func(c cluster) Gang { return c.gang(2, pod("cpu", "1")) },
			Shortage{Wanted: 2, Rejected: map[string]int{}},
			"0 of 2 pods fit",
		},
		"host ports allow one pod per node": {
			func(c cluster) { c.uniform(2, "cpu", "4") },
			func(c cluster) Gang {
				p := pod("cpu", "1")
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
				return c.gang(3, p)
			},
			Shortage{Wanted: 3, Fit: 2, Rejected: map[string]int{RefusedPorts: 2}},
			"2 of 3 pods fit; nodes: 2 node(s) didn't have free ports for the requested pod ports",
		},
		"demands fit one by one, but not together": {
			func(c cluster) { c.uniform(2, "cpu", "4") },
			func(c cluster) Gang {
				return Gang{Demands: []Demand{{c.class(pod("cpu", "1")), 5, 5}, {c.class(pod("cpu", "4")), 1, 1}}}
			},
			Shortage{Demand: 0, Wanted: 5, Fit: 4, Resource: "cpu", Missing: 1000, Rejected: map[string]int{"Insufficient cpu": 2}},
			"4 of 5 pods fit, 1 of cpu missing; nodes: 2 Insufficient cpu",
		},
		"the gang's own minimum": {
			func(c cluster) { c.uniform(2, "cpu", "4") },
			func(c cluster) Gang { return Gang{MinMember: 10, Demands: []Demand{{c.class(pod("cpu", "1")), 20, 1}}} },
			Shortage{Wanted: 10, Fit: 8, Resource: "cpu", Missing: 2000, Rejected: map[string]int{"Insufficient cpu": 2}},
			"8 of 10 pods fit, 2 of cpu missing; nodes: 2 Insufficient cpu",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			tc.nodes(c)
			d := Place(c.Snapshot, tc.gang(c), Options{})
			if d.Shortage == nil {
				t.Fatalf("placed: %v", d.Placed)
			}
			if diff := cmp.Diff(tc.want, *d.Shortage); diff != "" {
				t.Error("shortage (-want +got):", diff)
			}
			if diff := cmp.Diff(tc.text, d.Shortage.Detail()); diff != "" {
				t.Error("text (-want +got):", diff)
			}
		})
	}
}

// spreadRare lets a class have at most one pod per node, and prefers the node with the greatest
// name, unless it has no scores.
type spreadRare struct {
	t        *testing.T
	pods     map[string]int
	trail    []string
	noScores bool
	asked    int // nodes
}

func (r *spreadRare) Scores(*Class) bool { return !r.noScores }

func (r *spreadRare) Concerns(c *Class) bool { return c.Template.Labels["app"] == "guarded" }

func (r *spreadRare) Filter(_ *Class, nodes []*Node, refused []string) {
	r.asked += len(nodes)
	for i, n := range nodes {
		if r.pods[n.Name] > 0 {
			refused[i] = "node(s) already have one"
		}
	}
}

func (r *spreadRare) Score(_ *Class, nodes []*Node, scores []int64) {
	if r.noScores {
		return
	}
	for i, n := range nodes {
		scores[i] += int64(n.Name[len(n.Name)-1])
	}
}

// allScores is a spreadRare that is asked about all nodes.
type allScores struct{ *spreadRare }

func (allScores) Scores(*Class) bool { return true }

// TestOnlyTheBestNodesAreFiltered checks that a class without scores from the rare filter gets the same
// nodes as if the filter were asked about all nodes for each pod, and that few are asked.
func TestOnlyTheBestNodesAreFiltered(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		nodes := rapid.SliceOfN(rapid.IntRange(0, 6), 1, 40).Draw(rt, "free CPUs")
		gangs := rapid.SliceOfN(rapid.IntRange(1, 30), 1, 4).Draw(rt, "gangs")
		var placed [2][]string
		var refused [2]string
		for i := range placed {
			c := newCluster()
			for n, cpu := range nodes {
				c.node(fmt.Sprintf("node-%d", n), "cpu", fmt.Sprint(cpu))
			}
			r := &spreadRare{t: t, pods: map[string]int{}, noScores: true}
			rare := RareFilter(r)
			if i == 1 {
				rare = allScores{r}
			}
			placer := NewPlacer(c.Snapshot, Options{Rare: rare})
			for _, n := range gangs {
				spread := pod("cpu", "1")
				spread.Spec.TopologySpreadConstraints = make([]corev1.TopologySpreadConstraint, 1)
				d := placer.Place(c.gang(n, spread))
				if d.Shortage != nil {
					refused[i] += d.Shortage.Detail() + "; "
				} else {
					placed[i] = append(placed[i], c.names(d.Placed[0])...)
				}
			}
		}
		if !slices.Equal(placed[0], placed[1]) || refused[0] != refused[1] {
			rt.Fatalf("the best nodes first: %v, %s\nall nodes: %v, %s", placed[0], refused[0], placed[1], refused[1])
		}
	})
	c := newCluster().uniform(1000, "cpu", "4")
	r := &spreadRare{t: t, pods: map[string]int{}, noScores: true}
	spread := pod("cpu", "1")
	spread.Spec.TopologySpreadConstraints = make([]corev1.TopologySpreadConstraint, 1)
	if d := NewPlacer(c.Snapshot, Options{Rare: r}).Place(c.gang(100, spread)); d.Shortage != nil || r.asked > 100*4*rareBatch {
		t.Errorf("%d nodes were asked for 100 pods: %v", r.asked, d.Shortage)
	}
}

func (r *spreadRare) Add(_ *Class, n *Node) {
	r.pods[n.Name]++
	r.trail = append(r.trail, n.Name)
}

func (r *spreadRare) Remove(_ *Class, n *Node) {
	last := len(r.trail) - 1
	if r.trail[last] != n.Name {
		r.t.Errorf("removed from %s, but the last pod was added to %s", n.Name, r.trail[last])
	}
	r.trail = r.trail[:last]
	r.pods[n.Name]--
}

func TestRareFilterFollowsTheTransaction(t *testing.T) {
	c := newCluster().uniform(3, "cpu", "4")
	r := &spreadRare{t: t, pods: map[string]int{}}
	placer := NewPlacer(c.Snapshot, Options{Rare: r})
	spread := pod("cpu", "1")
	spread.Spec.TopologySpreadConstraints = make([]corev1.TopologySpreadConstraint, 1)

	d := placer.Place(c.gang(4, spread))
	if d.Shortage == nil || d.Shortage.Fit != 3 || d.Shortage.Resource != "" {
		t.Fatalf("4 pods, one per node: %+v", d)
	}
	if diff := cmp.Diff(map[string]int{"node(s) already have one": 3}, d.Shortage.Rejected); diff != "" {
		t.Error("rejected (-want +got):", diff)
	}
	if len(r.trail) != 0 {
		t.Error("left behind:", r.trail)
	}
	d = placer.Place(c.gang(2, spread))
	if got := c.names(d.Placed[0]); !slices.Equal(got, []string{"node-2", "node-1"}) {
		t.Error("the filter's scores did not count:", got)
	}
	// A class that is not Rare itself, but that the filter is concerned with.
	guarded := pod("cpu", "1")
	guarded.Labels = map[string]string{"app": "guarded"}
	d = placer.Place(c.gang(1, guarded))
	if got := c.names(d.Placed[0]); !slices.Equal(got, []string{"node-0"}) {
		t.Error("placed on", got)
	}
	// Any other class takes the fast path, and the filter is told of its pods.
	placer.Place(c.gang(3, pod("cpu", "1")))
	if len(r.trail) != 6 {
		t.Error("the filter knows of", r.trail)
	}
}

// noCPUs is a Pinner that has no CPUs.
type noCPUs struct{}

func (noCPUs) Take(*Class, []bool) (int32, Pin) { return -1, nil }
func (noCPUs) GiveBack(Pin)                     {}
func (noCPUs) Refused(_ *Class, open []bool) NoCPUs {
	return NoCPUs{Want: "CPUs", Nodes: map[string]int{"no CPUs": len(open)}}
}

type anyCPU struct{}

func (anyCPU) Key() string    { return "" }
func (anyCPU) Exclusive() int { return 0 }

// TestAFullClusterLacksResources checks that neither the rare filter nor the pinner is blamed if no
// node has room, whether the minimum is the demand's or the gang's.
func TestAFullClusterLacksResources(t *testing.T) {
	spread := pod("cpu", "1")
	spread.Spec.TopologySpreadConstraints = make([]corev1.TopologySpreadConstraint, 1)
	want := Shortage{Wanted: 2, Resource: "cpu", Missing: 2000, Rejected: map[string]int{"Insufficient cpu": 2}}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		pins Pins
	}{
		"a rare class":                     {spread, nil},
		"a class that asks for CPUs":       {pod("cpu", "1"), anyCPU{}},
		"a rare class that asks for CPUs":  {spread, anyCPU{}},
		"a class that the fast path knows": {pod("cpu", "1"), nil},
	} {
		for least, gang := range map[string]func(*Class) Gang{
			"the demand's minimum": func(class *Class) Gang { return Gang{Demands: []Demand{{class, 2, 2}}} },
			"the gang's minimum":   func(class *Class) Gang { return Gang{MinMember: 2, Demands: []Demand{{class, 2, 0}}} },
		} {
			t.Run(name+", "+least, func(t *testing.T) {
				cluster := newCluster().uniform(2, "cpu", "4")
				placer := NewPlacer(cluster.Snapshot, Options{Rare: &spreadRare{t: t, pods: map[string]int{}}, Pin: noCPUs{}})
				if d := placer.Place(cluster.gang(2, pod("cpu", "4"))); d.Shortage != nil {
					t.Fatal(d.Shortage.Detail())
				}
				class := cluster.class(c.pod)
				if c.pins != nil {
					class = class.Pinned(c.pins)
				}
				d := placer.Place(gang(class))
				if d.Shortage == nil {
					t.Fatal("placed")
				}
				if diff := cmp.Diff(want, *d.Shortage); diff != "" {
					t.Error("shortage (-want +got):", diff)
				}
			})
		}
	}
}

func TestSnapshotFollowsNodes(t *testing.T) {
	c := newCluster().uniform(3, "cpu", "4")
	placer := NewPlacer(c.Snapshot, Options{})
	capacity := func(p *corev1.Pod) int64 {
		t.Helper()
		if err := placer.AssertConsistent(); err != nil {
			t.Error(err)
		}
		return placer.indexes.get(c.class(p), LeastAllocated).capacity
	}
	one, gpu := pod("cpu", "1"), pod("example.com/gpu", "1")
	step := func(name string, wantOne, wantGPU int64) {
		t.Helper()
		if a, b := capacity(one), capacity(gpu); a != wantOne || b != wantGPU {
			t.Errorf("%s: room for %d and %d pods, want %d and %d", name, a, b, wantOne, wantGPU)
		}
	}
	step("at first", 12, 0)
	c.node("gpu", "cpu", "4", "example.com/gpu", "8")
	step("a node with a new resource", 16, 8)
	c.Remove("node-1")
	c.Remove("node-1")
	step("a node is gone", 12, 8)
	i, _ := c.Index("gpu")
	n := *c.Node(i)
	n.Used = c.Dims().Vector(list("cpu", "3", "example.com/gpu", "2"))
	c.Set(n)
	step("pods elsewhere", 9, 6)
	o := n.Object.DeepCopy()
	o.Spec.Unschedulable = true
	n.Object, n.Unschedulable = o, true
	c.Set(n)
	step("cordoned", 8, 0)
	c.node("node-3", "cpu", "4", "example.com/gpu", "1")
	if i, _ := c.Index("node-3"); i != 1 {
		t.Error("the free index was not taken again, but", i)
	}
	step("a node in another's place", 12, 1)
	end := c.changeEnd()
	n.Generation++
	n.Object = o.DeepCopy()
	c.Set(n)
	if generation, _ := c.Generation("gpu"); generation != n.Generation || c.changeEnd() != end {
		t.Error("a heartbeat is a change")
	}
}

func TestUndo(t *testing.T) {
	c := newCluster().uniform(3, "cpu", "4")
	placer := NewPlacer(c.Snapshot, Options{})
	before := state(c.Snapshot)
	g := Gang{Demands: []Demand{{c.class(pod("cpu", "1")), 5, 5}, {c.class(pod("memory", "0")), 2, 1}}}
	placer.Undo(g, placer.Place(g))
	if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
		t.Error("snapshot (-before +after):", diff)
	}
	if err := placer.AssertConsistent(); err != nil {
		t.Error(err)
	}
}

// TestIndexesSurviveEvictionAndALongHistory checks placement after an index was dropped because
// there were too many, and after one was rebuilt because the log of changes was truncated.
func TestIndexesSurviveEvictionAndALongHistory(t *testing.T) {
	c := newCluster().uniform(3, "cpu", "400", "memory", "400Gi", "pods", "10000")
	placer := NewPlacer(c.Snapshot, Options{})
	first := c.class(pod("cpu", "1"))
	place := func(class *Class) {
		g := Gang{Demands: []Demand{{class, 1, 1}}}
		placer.Undo(g, placer.Place(g))
	}
	place(first)
	place(c.class(pod("cpu", "2")))
	for range 5000 {
		place(first)
	}
	if c.changeBase == 0 {
		t.Error("the log of changes grows without bound:", len(c.changes))
	}
	if err := placer.AssertConsistent(); err != nil {
		t.Error(err)
	}
}

// state returns all parts of a snapshot that placement may change.
func state(s *Snapshot) map[string]Node {
	nodes := map[string]Node{}
	for _, n := range s.All() {
		c := *n
		c.Allocatable, c.Used, c.UsedNonZero = slices.Clone(n.Allocatable), slices.Clone(n.Used), slices.Clone(n.UsedNonZero)
		c.Ports = maps.Clone(n.Ports)
		nodes[n.Name] = c
	}
	return nodes
}
