package backfill

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// world is nodes of one resource, and pods on them.
type world struct {
	dims  *place.Dims
	nodes *place.Snapshot
	pods  []Pod
	free  map[string]int
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(sizes []int) *world {
	w := &world{dims: place.NewDims(), free: map[string]int{}}
	w.nodes = place.NewSnapshot(w.dims)
	for i, size := range sizes {
		w.free[fmt.Sprint("n", i)] = size
	}
	w.set(sizes)
	return w
}

func (w *world) set(sizes []int) {
	for i, size := range sizes {
		name := fmt.Sprint("n", i)
		w.nodes.Set(place.Node{
			Name: name, Used: w.cpus(size - w.free[name]),
			Allocatable: w.cpus(size).Plus(w.dims.Vector(corev1.ResourceList{corev1.ResourcePods: resource.MustParse("100")}), 1),
		})
	}
}

func (w *world) cpus(n int) place.Vector {
	return w.dims.Vector(corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(n), resource.DecimalSI)})
}

func (w *world) class(t testing.TB, cpus int) *place.Class {
	c, err := place.NewClass(w.dims, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI),
		}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run puts a pod on a node.
func (w *world) run(node string, cpus int, ends time.Duration, started int) {
	p := Pod{Node: node, Request: w.cpus(cpus), NonZero: w.cpus(cpus), Started: start.Add(time.Duration(started) * time.Second)}
	if ends > 0 {
		p.Ends = start.Add(ends)
	}
	w.pods = append(w.pods, p)
	w.free[node] -= cpus
}

func TestFind(t *testing.T) {
	for name, c := range map[string]struct {
		sizes []int
		run   func(*world)
		pods  int // of 2 CPUs each
		nodes string
		// starts is after how many seconds the gang starts; 0: now or unknown, -1: never.
		starts int
	}{
		"it fits now":       {[]int{4, 4}, func(*world) {}, 4, "map[n0:2 n1:2]", 0},
		"it can never fit":  {[]int{4, 4}, func(*world) {}, 5, "map[]", -1},
		"the first to end":  {[]int{2, 2}, func(w *world) { w.run("n0", 2, 9*time.Second, 0); w.run("n1", 2, 5*time.Second, 0) }, 1, "map[n1:1]", 5},
		"both must end":     {[]int{2, 2}, func(w *world) { w.run("n0", 2, 9*time.Second, 0); w.run("n1", 2, 5*time.Second, 0) }, 2, "map[n0:1 n1:1]", 9},
		"known ends first":  {[]int{2, 2}, func(w *world) { w.run("n0", 2, 0, -100); w.run("n1", 2, time.Hour, 0) }, 1, "map[n1:1]", 3600},
		"the oldest":        {[]int{2, 2}, func(w *world) { w.run("n0", 2, 0, 5); w.run("n1", 2, 0, 3) }, 1, "map[n1:1]", 0},
		"parts of one node": {[]int{4}, func(w *world) { w.run("n0", 1, time.Second, 0); w.run("n0", 1, 2*time.Second, 0); w.run("n0", 2, 0, 0) }, 1, "map[n0:1]", 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(c.sizes)
			c.run(w)
			w.set(c.sizes)
			p := Find(w.nodes, place.Options{}, place.Gang{MinMember: c.pods, Demands: []place.Demand{{Class: w.class(t, 2), Count: 9}}}, w.pods)
			if p == nil {
				if c.starts != -1 {
					t.Fatal("there is no plan")
				}
				return
			}
			nodes := map[string]int{}
			for _, n := range p.Nodes[0] {
				nodes[n]++
			}
			starts := 0
			if !p.Starts.IsZero() {
				starts = int(p.Starts.Sub(start).Seconds())
			}
			if fmt.Sprint(nodes) != c.nodes || starts != c.starts {
				t.Errorf("on %v after %d s, want %v after %d s", nodes, starts, c.nodes, c.starts)
			}
		})
	}
}

// TestPlansAreSoundAndSoonest checks random plans: once the pods have ended that end by the plan's
// start, its nodes have the room, and the gang would not have fitted before the last of them ended.
// The nodes are not changed, and the same state gives the same plan.
func TestPlansAreSoundAndSoonest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 6), 1, 5).Draw(rt, "nodes")
		w := newWorld(sizes)
		for i := range rapid.IntRange(0, 12).Draw(rt, "pods") {
			node := fmt.Sprint("n", rapid.IntRange(0, len(sizes)-1).Draw(rt, "node"))
			if cpus := rapid.IntRange(1, 3).Draw(rt, "cpus"); cpus <= w.free[node] {
				w.run(node, cpus, time.Duration(rapid.IntRange(0, 4).Draw(rt, "ends"))*time.Second, i)
			}
		}
		w.set(sizes)
		request := rapid.IntRange(1, 3).Draw(rt, "request")
		least := rapid.IntRange(1, 8).Draw(rt, "least")
		gang := place.Gang{MinMember: least, Demands: []place.Demand{{Class: w.class(t, request), Count: least + rapid.IntRange(0, 3).Draw(rt, "more")}}}
		before := fmt.Sprint(w.nodes.Node(0).Used)
		p := Find(w.nodes, place.Options{}, gang, w.pods)
		if fmt.Sprint(p) != fmt.Sprint(Find(w.nodes, place.Options{}, gang, w.pods)) || before != fmt.Sprint(w.nodes.Node(0).Used) {
			rt.Fatal("a second call gives another plan, or the nodes have changed")
		}
		// places returns how many pods of the gang fit if the pods have ended for which ended is true.
		places := func(ended func(Pod) bool) (total int, free map[string]int) {
			free = map[string]int{}
			for i := range sizes {
				free[fmt.Sprint("n", i)] = w.free[fmt.Sprint("n", i)]
			}
			for _, x := range w.pods {
				if ended(x) {
					free[x.Node] += int(x.Request.At(0) / 1000)
				}
			}
			for _, n := range free {
				total += n / request
			}
			return total, free
		}
		all, _ := places(func(Pod) bool { return true })
		if p == nil {
			if all >= least {
				rt.Fatalf("there is no plan, and %d pods fit in the end", all)
			}
			return
		}
		if len(p.Nodes[0]) != least {
			rt.Fatalf("%d nodes for %d pods", len(p.Nodes[0]), least)
		}
		if p.Starts.IsZero() {
			// Either it fits now, or pods must end whose ends are unknown.
			now, _ := places(func(Pod) bool { return false })
			known, _ := places(func(x Pod) bool { return !x.Ends.IsZero() })
			if now < least && known >= least {
				rt.Fatal("the start is known, and the plan does not say so")
			}
			return
		}
		_, free := places(func(x Pod) bool { return !x.Ends.IsZero() && !x.Ends.After(p.Starts) })
		for _, n := range p.Nodes[0] {
			if free[n] -= request; free[n] < 0 {
				rt.Fatalf("%s has too little room at the start", n)
			}
		}
		if n, _ := places(func(x Pod) bool { return !x.Ends.IsZero() && x.Ends.Before(p.Starts) }); n >= least {
			rt.Fatal("it fits earlier")
		}
	})
}
