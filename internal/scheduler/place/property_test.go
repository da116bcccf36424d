package place

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// world is a small random cluster that uses taints, labels, ports and every kind of resource.
type world struct{ objects []*corev1.Node }

func drawWorld(t *rapid.T) world {
	var w world
	for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
		o := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: rapid.IntRange(0, 9).Draw(t, "cordon") == 0}}
		o.Name = fmt.Sprintf("node-%d", i)
		o.Labels = map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")}
		if effect := rapid.SampledFrom([]corev1.TaintEffect{"", "", "", "NoSchedule", "NoExecute", "PreferNoSchedule"}).Draw(t, "taint"); effect != "" {
			o.Spec.Taints = []corev1.Taint{{Key: "x", Effect: effect}}
		}
		o.Status.Allocatable = list(
			"cpu", fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "cpu")),
			"memory", fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "memory"), "Gi"),
			"pods", fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "pods")),
			"example.com/gpu", fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "gpu")))
		w.objects = append(w.objects, o)
	}
	return w
}

// build makes a cluster with the nodes in the given order.
func (w world) build(order []int) cluster {
	c := newCluster()
	c.Dims().Vector(list("example.com/gpu", "1"))
	for _, i := range order {
		c.set(w.objects[i])
	}
	return c
}

func (w world) order() []int {
	order := make([]int, len(w.objects))
	for i := range order {
		order[i] = i
	}
	return order
}

func drawPod(t *rapid.T) *corev1.Pod {
	p := pod("cpu", fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "cpu")), "memory", fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "memory"), "Gi"))
	if rapid.IntRange(0, 3).Draw(t, "gpu") == 0 {
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = list("g", "1")["g"]
	}
	if rapid.IntRange(0, 5).Draw(t, "bare") == 0 {
		p = pod()
	}
	if rapid.IntRange(0, 2).Draw(t, "selector") == 0 {
		p.Spec.NodeSelector = map[string]string{"zone": "a"}
	}
	if rapid.Bool().Draw(t, "tolerant") {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}}
	}
	if rapid.IntRange(0, 5).Draw(t, "port") == 0 {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, HostIP: rapid.SampledFrom([]string{"", "10.0.0.1", "10.0.0.2"}).Draw(t, "ip")}}
	}
	if rapid.IntRange(0, 3).Draw(t, "preference") == 0 {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 10, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "In", Values: []string{"b"}}}}}}}}
	}
	return p
}

// request is a gang given by its templates, to be compiled for several clusters.
type request struct {
	pods       []*corev1.Pod
	count, min []int
	members    int
}

func drawRequest(t *rapid.T, demands int) request {
	var r request
	for range rapid.IntRange(1, demands).Draw(t, "demands") {
		r.pods = append(r.pods, drawPod(t))
		count := rapid.IntRange(1, 6).Draw(t, "count")
		r.count = append(r.count, count)
		r.min = append(r.min, rapid.IntRange(0, count).Draw(t, "min"))
		r.members += count
	}
	r.members = rapid.IntRange(0, r.members).Draw(t, "members")
	return r
}

func (r request) gang(c cluster) Gang {
	g := Gang{MinMember: r.members}
	for i, p := range r.pods {
		g.Demands = append(g.Demands, Demand{Class: c.class(p), Count: r.count[i], Min: r.min[i]})
	}
	return g
}

func drawOptions(t *rapid.T) Options {
	return Options{Strategy: rapid.SampledFrom([]Strategy{LeastAllocated, MostAllocated}).Draw(t, "strategy")}
}

// TestPlacementIsSafe makes random requests, in random order, with random changes of nodes in
// between. What the placer places is allowed, what it does not place leaves no trace, and its
// indexes are correct.
func TestPlacementIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.build(w.order())
		placer := NewPlacer(c.Snapshot, drawOptions(t))
		on := map[string][]*corev1.Pod{} // the model: which pods run on which node
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "event") == 0 {
				changeNode(t, w, c, on)
			} else {
				placeGang(t, c, placer, on, drawRequest(t, 3))
			}
			if err := placer.AssertConsistent(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func placeGang(t *rapid.T, c cluster, placer *Placer, on map[string][]*corev1.Pod, r request) {
	before := state(c.Snapshot)
	g := r.gang(c)
	d := placer.Place(g)
	if d.Shortage != nil {
		if d.Placed != nil || d.Shortage.Fit >= d.Shortage.Wanted || len(d.Shortage.Detail()) == 0 {
			t.Fatalf("shortage %+v, placed %v", d.Shortage, d.Placed)
		}
		if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
			t.Fatal("a gang that does not fit changed the snapshot (-before +after):", diff)
		}
		return
	}
	if rapid.IntRange(0, 4).Draw(t, "undo") == 0 {
		placer.Undo(g, d)
		if diff := cmp.Diff(before, state(c.Snapshot)); diff != "" {
			t.Fatal("undone, but the snapshot changed (-before +after):", diff)
		}
		return
	}
	total := 0
	for i, placed := range d.Placed {
		total += len(placed)
		if len(placed) < r.min[i] || len(placed) > r.count[i] {
			t.Fatalf("demand %d: %d placed of %d, at least %d", i, len(placed), r.count[i], r.min[i])
		}
		for _, node := range placed {
			name := c.Node(node).Name
			if why := forbids(c.Node(node).Object, on[name], r.pods[i]); why != "" {
				t.Fatalf("demand %d on %s: %s", i, name, why)
			}
			on[name] = append(on[name], r.pods[i])
		}
	}
	if total < r.members {
		t.Fatalf("%d placed, at least %d wanted", total, r.members)
	}
	check(t, c, on)
}

// changeNode cordons, relabels, removes or re-adds a node, and lets its pods end.
func changeNode(t *rapid.T, w world, c cluster, on map[string][]*corev1.Pod) {
	i := rapid.IntRange(0, len(w.objects)-1).Draw(t, "node")
	o := w.objects[i].DeepCopy()
	if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
		c.Remove(o.Name)
		delete(on, o.Name)
		return
	}
	o.Spec.Unschedulable = rapid.Bool().Draw(t, "cordon")
	o.Labels["zone"] = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")
	on[o.Name] = on[o.Name][:rapid.IntRange(0, len(on[o.Name])).Draw(t, "stay")]
	n := Node{Name: o.Name, Object: o, Labels: o.Labels, Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable,
		Allocatable: c.Dims().Vector(o.Status.Allocatable), Ports: PortSet{}}
	for _, p := range on[o.Name] {
		request, nonZero := c.Dims().PodVector(p)
		n.Used, n.UsedNonZero = n.Used.Plus(request, 1), n.UsedNonZero.Plus(nonZero, 1)
		for _, port := range PodPorts(p) {
			n.Ports[port]++
		}
	}
	c.Set(n)
}

// forbids decides independently, from the API objects, whether one more pod may go to a node. It
// returns the reason why not, or "".
func forbids(n *corev1.Node, there []*corev1.Pod, p *corev1.Pod) string {
	if zone, ok := p.Spec.NodeSelector["zone"]; ok && n.Labels["zone"] != zone {
		return "selector"
	}
	for _, taint := range n.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && len(p.Spec.Tolerations) == 0 {
			return "taint"
		}
	}
	if n.Spec.Unschedulable {
		return "cordoned"
	}
	if pods := n.Status.Allocatable["pods"]; int64(len(there)) >= pods.Value() {
		return "pods"
	}
	for name, ask := range p.Spec.Containers[0].Resources.Requests {
		free := n.Status.Allocatable[name]
		for _, o := range there {
			free.Sub(o.Spec.Containers[0].Resources.Requests[name])
		}
		if !ask.IsZero() && ask.Cmp(free) > 0 {
			return string(name)
		}
	}
	for _, want := range p.Spec.Containers[0].Ports {
		for _, o := range there {
			for _, taken := range o.Spec.Containers[0].Ports {
				if taken.HostIP == "" || want.HostIP == "" || taken.HostIP == want.HostIP {
					return "port"
				}
			}
		}
	}
	return ""
}

// check compares the sums of the snapshot with the model.
func check(t *rapid.T, c cluster, on map[string][]*corev1.Pod) {
	for _, n := range c.All() {
		var used, nonZero Vector
		for _, p := range on[n.Name] {
			request, requestNonZero := c.Dims().PodVector(p)
			used, nonZero = used.Plus(request, 1), nonZero.Plus(requestNonZero, 1)
		}
		if !equal(used, n.Used) || nonZero.At(CPU) != n.UsedNonZero[CPU] || nonZero.At(Memory) != n.UsedNonZero[Memory] {
			t.Fatalf("%s: used %v and %v, want %v and %v", n.Name, n.Used, n.UsedNonZero, used, nonZero)
		}
	}
}

// TestPlacementDependsOnlyOnTheState checks that the same gangs go to the same nodes, regardless of
// the order in which nodes were added, and of the placer's history.
func TestPlacementDependsOnlyOnTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		o := drawOptions(t)
		a := w.build(w.order())
		b := w.build(rapid.Permutation(w.order()).Draw(t, "order"))
		keeps := NewPlacer(a.Snapshot, o)
		for range rapid.IntRange(1, 4).Draw(t, "gangs") {
			r := drawRequest(t, 3)
			da := keeps.Place(r.gang(a))
			db := Place(b.Snapshot, r.gang(b), o)
			if diff := cmp.Diff(da.Shortage, db.Shortage); diff != "" {
				t.Fatal("shortage differs:", diff)
			}
			for i := range da.Placed {
				if x, y := a.names(da.Placed[i]), b.names(db.Placed[i]); !slices.Equal(x, y) {
					t.Fatalf("demand %d: %v and %v", i, x, y)
				}
			}
		}
	})
}

// TestOneClassFitsWheneverItCan checks that a gang of one class fits exactly when an exhaustive
// search finds a placement.
func TestOneClassFitsWheneverItCan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c := w.build(w.order())
		o := drawOptions(t)
		Place(c.Snapshot, drawRequest(t, 2).gang(c), o) // the cluster is not always empty
		r := drawRequest(t, 1)
		g := r.gang(c)
		possible := search(c, g)
		d := Place(c.Snapshot, g, o)
		if got := d.Shortage == nil; got != possible {
			t.Fatalf("fits %v, but exhaustively %v: %+v", got, possible, d.Shortage)
		}
	})
}

// TestSeveralClassesFitAlmostWheneverTheyCan checks that greedy filling with several classes seldom
// misses a placement that an exhaustive search finds, and finds none that the search misses. The
// test limits the rate of misses to about what was measured, on gangs that barely fit or barely do
// not: 1.3 % of 9,162 possible gangs.
func TestSeveralClassesFitAlmostWheneverTheyCan(t *testing.T) {
	possible, missed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c, g := drawTight(t)
		can := search(c, g)
		does := Place(c.Snapshot, g, drawOptions(t)).Shortage == nil
		switch {
		case does && !can:
			t.Fatal("placed, though impossible")
		case can:
			possible++
			if !does {
				missed++
			}
		}
	})
	t.Logf("%d gangs possible, %d missed", possible, missed)
	const missedMax = 0.02
	if float64(missed) > missedMax*float64(possible)+6 {
		t.Errorf("%d of %d possible gangs missed", missed, possible)
	}
}

// drawTight draws nodes, and a gang that asks for most of their total capacity.
func drawTight(t *rapid.T) (cluster, Gang) {
	c := newCluster()
	var cpus, gigs int
	for i := range rapid.IntRange(2, 4).Draw(t, "nodes") {
		cpu, gig := rapid.IntRange(2, 8).Draw(t, "cpu"), rapid.IntRange(2, 8).Draw(t, "memory")
		cpus, gigs = cpus+cpu, gigs+gig
		o := &corev1.Node{}
		o.Labels = map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")}
		c.object(o, fmt.Sprintf("node-%d", i), "cpu", fmt.Sprint(cpu), "memory", fmt.Sprint(gig, "Gi"))
	}
	var g Gang
	for range rapid.IntRange(2, 4).Draw(t, "demands") {
		cpu, gig := rapid.IntRange(1, 4).Draw(t, "cpu"), rapid.IntRange(1, 4).Draw(t, "memory")
		p := pod("cpu", fmt.Sprint(cpu), "memory", fmt.Sprint(gig, "Gi"))
		if rapid.IntRange(0, 3).Draw(t, "selector") == 0 {
			p.Spec.NodeSelector = map[string]string{"zone": "a"}
		}
		n := min(rapid.IntRange(0, 4).Draw(t, "count"), cpus/cpu, gigs/gig)
		cpus, gigs = cpus-n*cpu, gigs-n*gig
		g.Demands = append(g.Demands, Demand{Class: c.class(p), Count: n, Min: n})
	}
	return c, g
}

// search reports whether the gang's minimum fits, by exhaustive search.
func search(c cluster, g Gang) bool {
	counts := make([]int, len(g.Demands))
	var choose func(i, members int) bool
	choose = func(i, members int) bool {
		if i == len(g.Demands) {
			return members >= g.MinMember && searchNodes(c, g, counts, 0)
		}
		// Placing more pods than necessary is never easier.
		for n := g.Demands[i].Min; n <= g.Demands[i].Count; n++ {
			counts[i] = n
			if choose(i+1, members+n) {
				return true
			}
			if members+n >= g.MinMember {
				break
			}
		}
		return false
	}
	return choose(0, 0)
}

// searchNodes fills the nodes, starting at the given one, with every combination of pods that fits.
func searchNodes(c cluster, g Gang, left []int, node int) bool {
	if slices.Max(append(left, 0)) == 0 {
		return true
	}
	if node == len(c.nodes) {
		return false
	}
	st := func(class *Class) bool {
		return (&static{s: c.Snapshot, class: class}).filter(&c.nodes[node]) == passes
	}
	var fill func(d int) bool
	fill = func(d int) bool {
		if d == len(g.Demands) {
			return searchNodes(c, g, left, node+1)
		}
		class := g.Demands[d].Class
		taken := 0
		defer func() {
			for ; taken > 0; taken-- {
				c.apply(int32(node), class, -1)
				left[d]++
			}
		}()
		for {
			if fill(d + 1) {
				return true
			}
			x := &index{s: c.Snapshot, class: class}
			fit, _ := x.room(int32(node))
			if left[d] == 0 || !st(class) || fit == 0 || slices.ContainsFunc(class.Ports, c.nodes[node].Ports.Conflicts) {
				return false
			}
			c.apply(int32(node), class, 1)
			left[d]--
			taken++
		}
	}
	return fill(0)
}
