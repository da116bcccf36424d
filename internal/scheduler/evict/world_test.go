package evict

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/scheduler/network"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// TestMain makes 300 checks of each property, unless -rapid.checks says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "rapid.checks" })
	if !chosen {
		_ = flag.Set("rapid.checks", "300")
	}
	os.Exit(m.Run())
}

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// world is a cluster given by plain values, from which State is built in any order.
type world struct {
	nodes   []*corev1.Node
	gangs   []testGang
	queues  []testQueue
	budgets []int
	rules   Rules
	crowded bool // most gangs may be evicted by priority
	shares  bool // most gangs may be evicted for the shares of queues
	network *network.Tree
}

type testGang struct {
	Gang
	templates []*corev1.Pod // by pod
}

type testQueue struct {
	name, parent                    string
	guarantee, deserved, capability corev1.ResourceList
	kept, weighed                   bool
}

// testClaim is a claim given by templates.
type testClaim struct {
	Claim
	templates  []*corev1.Pod
	count, min []int
}

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func template(pairs ...string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{Requests: list(pairs...)},
	}}}}
}

func newNode(name string, pairs ...string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = name
	n.Status.Allocatable = list(append([]string{"pods", "110"}, pairs...)...)
	return n
}

// state builds the State, with the nodes, gangs and queues in the given order.
func (w *world) state(shuffle func(n int) []int) (*State, *place.Dims) {
	dims := place.NewDims()
	dims.Vector(list("example.com/gpu", "1"))
	s := &State{Now: now, Nodes: place.NewSnapshot(dims), Rules: w.rules}
	s.Place.Network = w.network
	for i, allowed := range w.budgets {
		name := types.NamespacedName{Name: fmt.Sprint("budget-", i)}
		s.Budgets = append(s.Budgets, Budget{Name: name, Allowed: allowed})
	}
	used := map[string]place.Vector{}
	nodes := map[string]*place.Node{}
	for _, i := range shuffle(len(w.nodes)) {
		o := w.nodes[i]
		nodes[o.Name] = &place.Node{Name: o.Name, Object: o, Labels: o.Labels,
			Allocatable: dims.Vector(o.Status.Allocatable), Ports: place.PortSet{}}
	}
	for _, i := range shuffle(len(w.gangs)) {
		g := w.gangs[i].Gang
		g.Pods = nil
		for _, k := range shuffle(len(w.gangs[i].Pods)) {
			p := w.gangs[i].Pods[k]
			p.Request, p.NonZero = dims.PodVector(w.gangs[i].templates[k])
			p.Ports = place.PodPorts(w.gangs[i].templates[k])
			g.Pods = append(g.Pods, p)
			n := nodes[p.Node]
			n.Used, n.UsedNonZero = n.Used.Plus(p.Request, 1), n.UsedNonZero.Plus(p.NonZero, 1)
			for _, port := range p.Ports {
				n.Ports[port]++
			}
			used[g.Queue] = used[g.Queue].Plus(p.Request, 1)
		}
		s.Gangs = append(s.Gangs, g)
	}
	for _, i := range shuffle(len(w.nodes)) {
		s.Nodes.Set(*nodes[w.nodes[i].Name])
	}
	for _, i := range shuffle(len(w.queues)) {
		q := w.queues[i]
		s.Queues = append(s.Queues, Queue{Name: q.name, Parent: q.parent, Used: used[q.name],
			Guarantee: dims.Vector(q.guarantee), Deserved: share.NewLimits(dims, q.deserved),
			Capability: share.NewLimits(dims, q.capability), Kept: q.kept, Weighed: q.weighed})
	}
	return s, dims
}

func inOrder(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// claim compiles a claim for a state's dimensions.
func (c *testClaim) claim(dims *place.Dims) Claim {
	out := c.Claim
	out.Demands = nil
	for i, t := range c.templates {
		class, err := place.NewClass(dims, t)
		if err != nil {
			panic(err)
		}
		out.Demands = append(out.Demands, place.Demand{Class: class, Count: c.count[i], Min: c.min[i]})
	}
	return out
}

func (w *world) find(c *testClaim) *Plan {
	s, dims := w.state(inOrder)
	return New(s).Find(c.claim(dims))
}

// without returns the world without some pods.
func (w *world) without(gone map[types.NamespacedName]bool) *world {
	out := *w
	out.gangs = nil
	for _, g := range w.gangs {
		pods, templates := g.Pods, g.templates
		g.Pods, g.templates = nil, nil
		for i := range pods {
			if !gone[pods[i].Name] {
				g.Pods, g.templates = append(g.Pods, pods[i]), append(g.templates, templates[i])
			}
		}
		out.gangs = append(out.gangs, g)
	}
	return &out
}

// leaving returns the pods that are being deleted.
func (w *world) leaving() map[types.NamespacedName]bool {
	gone := map[types.NamespacedName]bool{}
	for _, g := range w.gangs {
		for _, p := range g.Pods {
			if p.Leaving {
				gone[p.Name] = true
			}
		}
	}
	return gone
}

// fits reports whether package place places the claim, and the capabilities allow it.
func (w *world) fits(c *testClaim) bool {
	s, dims := w.state(inOrder)
	claim := c.claim(dims)
	if place.NewPlacer(s.Nodes, s.Place).Place(claim.Gang).Shortage != nil {
		return false
	}
	for i := range w.queues {
		q := &w.queues[i]
		if !w.above(q.name, c.Queue) {
			continue
		}
		for name, limit := range q.capability {
			used := w.use(q.name, name)
			if need := c.need(name); need > 0 && used+need > amountOf(name, limit) {
				return false
			}
		}
	}
	return true
}

func amountOf(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func request(t *corev1.Pod, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return 1
	}
	return amountOf(name, t.Spec.Containers[0].Resources.Requests[name])
}

// need returns what the claim's minimum takes at most.
func (c *testClaim) need(name corev1.ResourceName) int64 {
	sum, pods, all := int64(0), 0, 0
	most := int64(0)
	for i, t := range c.templates {
		sum += int64(c.min[i]) * request(t, name)
		pods += c.min[i]
		all += c.count[i]
		if c.count[i] > c.min[i] && c.MinMember > 0 {
			most = max(most, request(t, name))
		}
	}
	if c.MinMember <= pods {
		return sum
	}
	return sum + most*int64(min(c.MinMember, all)-pods)
}

// chain returns a queue and those above it, without the root.
func (w *world) chain(name string) []string {
	var out []string
	for name != share.Root {
		out = append(out, name)
		i := slices.IndexFunc(w.queues, func(q testQueue) bool { return q.name == name })
		if i < 0 {
			break
		}
		if name = w.queues[i].parent; name == "" {
			break
		}
	}
	return append(out, share.Root)
}

func (w *world) above(queue, below string) bool { return slices.Contains(w.chain(below), queue) }

// use returns what pods of a queue and of the queues below have of a resource. Pods that are leaving
// do not count.
func (w *world) use(queue string, name corev1.ResourceName) int64 {
	sum := int64(0)
	for _, g := range w.gangs {
		if !w.above(queue, g.Queue) {
			continue
		}
		for i, t := range g.templates {
			if !g.Pods[i].Leaving {
				sum += request(t, name)
			}
		}
	}
	return sum
}

func drawWorld(t *rapid.T, nodesMax, gangsMax, podsMax int) *world {
	w := &world{rules: Rules{
		Preempt:       !oneIn(t, 5, "no preemption"),
		PreemptAcross: rapid.Bool().Draw(t, "across"),
		Reclaim:       !oneIn(t, 5, "no reclaim"),
		EvictionsMax:  rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "often"), Window: time.Hour,
	}}
	amount := func(label string, most int) string { return fmt.Sprint(rapid.IntRange(0, most).Draw(t, label)) }
	for i := range rapid.IntRange(1, nodesMax).Draw(t, "nodes") {
		n := newNode(fmt.Sprint("node-", i), "cpu", fmt.Sprint(rapid.IntRange(1, 6).Draw(t, "cpu")),
			"memory", fmt.Sprint(rapid.IntRange(2, 8).Draw(t, "memory"), "Gi"), "example.com/gpu", amount("gpu", 1))
		n.Labels = map[string]string{"zone": rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "zone")}
		w.nodes = append(w.nodes, n)
	}
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 1:
		w.crowded = true
	case 2:
		w.shares = true
	}
	for _, q := range []testQueue{
		{name: share.Root}, {name: "a"}, {name: "b"}, {name: "a1", parent: "a"}, {name: "a2", parent: "a"},
	} {
		if q.name != share.Root {
			switch rapid.IntRange(0, 3).Draw(t, "deserved") {
			case 0:
				q.deserved = list("cpu", amount("deserves", 12))
			case 1:
				q.deserved = list("cpu", amount("deserves", 12), "memory", amount("deserves", 16)+"Gi")
			}
			switch rapid.IntRange(0, 5).Draw(t, "guarantee") {
			case 0:
				q.guarantee = list("cpu", amount("guarantees", 6))
			case 1:
				q.guarantee = list("memory", amount("guarantees", 6)+"Gi")
			}
			if oneIn(t, 8, "capability") {
				q.capability = list("cpu", amount("capability", 12))
			}
			q.kept = oneIn(t, 6, "kept")
			if w.shares { // the claimant's queue, b, deserves much, and the others little
				most := 3
				if q.name == "b" {
					most = 12
				}
				q.deserved = list("cpu", amount("deserves", most), "memory", amount("deserves", most)+"Gi")
			}
			q.weighed = rapid.Bool().Draw(t, "weighed")
		}
		w.queues = append(w.queues, q)
	}
	for range rapid.IntRange(0, 2).Draw(t, "budgets") {
		w.budgets = append(w.budgets, rapid.IntRange(0, 2).Draw(t, "allowed"))
	}
	least := 1
	if w.crowded || w.shares {
		w.rules, least = Rules{Preempt: true, PreemptAcross: true, Reclaim: true}, gangsMax-1
	}
	for i := range rapid.IntRange(least, gangsMax).Draw(t, "gangs") {
		w.drawGang(t, fmt.Sprint("gang-", i), podsMax)
	}
	return w
}

func (w *world) drawGang(t *rapid.T, key string, podsMax int) {
	g := testGang{Gang: Gang{Key: key, Queue: drawQueue(t), Priority: drawPriority(t)}}
	if w.crowded {
		g.Queue = rapid.SampledFrom([]string{"b", "b", "b", "a1"}).Draw(t, "queue")
		g.Priority = rapid.SampledFrom([]int32{0, 5}).Draw(t, "priority")
	}
	if w.shares {
		g.Queue = rapid.SampledFrom([]string{"a1", "a1", "a2", "b"}).Draw(t, "queue")
	}
	if oneIn(t, 6, "evicted before") {
		g.Evicted = []time.Time{now.Add(-time.Minute), now.Add(-2 * time.Hour)}
	}
	odd := oneIn(t, 6, "odd") // pods that differ
	shape := drawPod(t)
	for k := range rapid.IntRange(1, podsMax).Draw(t, "pods") {
		pod := Pod{Name: types.NamespacedName{Name: fmt.Sprint(key, "-", k)}, Priority: g.Priority, Task: "x",
			Started: now.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "age")) * time.Minute)}
		tpl := shape
		if odd {
			tpl = drawPod(t)
			pod.Task = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "task")
			pod.Protected = oneIn(t, 6, "protected")
			pod.Leaving = oneIn(t, 6, "leaving")
			if oneIn(t, 10, "critical") {
				pod.Priority = SystemCritical
			}
			if oneIn(t, 4, "cooldown") {
				pod.Cooldown = 2 * time.Minute
			}
			if oneIn(t, 4, "task priority") {
				pod.Priority = drawPriority(t)
			}
		}
		for b := range w.budgets {
			if oneIn(t, 4, "covered") {
				pod.Budgets = append(pod.Budgets, b)
			}
		}
		// The pod goes to a node that takes it, if there is one.
		for _, n := range rapid.Permutation(inOrder(len(w.nodes))).Draw(t, "node") {
			if w.roomFor(n, &g, tpl) {
				pod.Node = w.nodes[n].Name
				g.Pods, g.templates = append(g.Pods, pod), append(g.templates, tpl)
				break
			}
		}
	}
	if len(g.Pods) == 0 {
		return
	}
	g.MinMember = len(g.Pods)
	if oneIn(t, 3, "elastic") {
		g.MinMember = rapid.IntRange(0, len(g.Pods)).Draw(t, "minimum")
	}
	if odd && rapid.Bool().Draw(t, "by task") {
		g.Min = map[string]int{"x": rapid.IntRange(0, 2).Draw(t, "minimum of x")}
	}
	w.gangs = append(w.gangs, g)
}

// oneIn is true in about one of n draws, and seldom when an example is made simple.
func oneIn(t *rapid.T, n int, label string) bool {
	return rapid.IntRange(0, 1000*n-1).Draw(t, label)%n == n-1
}

func drawQueue(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a1", "a1", "a1", "a2", "a2", "b", "b", "", "unknown"}).Draw(t, "queue")
}

func drawPriority(t *rapid.T) int32 {
	return rapid.SampledFrom([]int32{0, 0, 5, 10}).Draw(t, "priority")
}

func drawPod(t *rapid.T) *corev1.Pod {
	p := template("cpu", fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "cpu")),
		"memory", fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "memory"), "Gi"))
	if oneIn(t, 6, "gpu") {
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}
	if oneIn(t, 6, "selector") {
		p.Spec.NodeSelector = map[string]string{"zone": "a"}
	}
	if oneIn(t, 10, "port") {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	}
	return p
}

// roomFor reports whether a node has room for one more pod of a gang in the making.
func (w *world) roomFor(n int, making *testGang, tpl *corev1.Pod) bool {
	if zone := tpl.Spec.NodeSelector["zone"]; zone != "" && w.nodes[n].Labels["zone"] != zone {
		return false
	}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "example.com/gpu"} {
		free := amountOf(name, w.nodes[n].Status.Allocatable[name])
		for _, g := range append(slices.Clone(w.gangs), *making) {
			for i, p := range g.Pods {
				if p.Node == w.nodes[n].Name {
					free -= request(g.templates[i], name)
					if len(tpl.Spec.Containers[0].Ports) > 0 && len(g.templates[i].Spec.Containers[0].Ports) > 0 {
						return false
					}
				}
			}
		}
		if request(tpl, name) > max(free, 0) {
			return false
		}
	}
	return true
}

func drawClaim(t *rapid.T, w *world, demands int) *testClaim {
	c := &testClaim{Claim: Claim{Gang: place.Gang{Key: "claimant", Queue: drawQueue(t)}, Priority: drawPriority(t)}}
	if oneIn(t, 2, "high") {
		c.Priority = 20
	}
	c.Never = oneIn(t, 20, "never")
	if oneIn(t, 10, "evicted before") {
		c.Evicted = []time.Time{now.Add(-time.Minute)}
	}
	if w.crowded || w.shares {
		c.Queue, c.Never, c.Evicted = "b", false, nil
		if w.crowded {
			c.Priority = 20
		}
		c.Surplus = oneIn(t, 3, "surplus")
	} else if g := rapid.IntRange(0, 5*len(w.gangs)).Draw(t, "own"); g < len(w.gangs) {
		own := &w.gangs[g]
		c.Key, c.Queue, c.Priority = own.Key, own.Queue, own.Priority
		c.TaskPriority = drawPriority(t)
		c.Surplus = rapid.Bool().Draw(t, "surplus")
	}
	sum, all := 0, 0
	for range rapid.IntRange(1, demands).Draw(t, "demands") {
		c.templates = append(c.templates, drawPod(t))
		count := rapid.IntRange(1, 4).Draw(t, "count")
		least := rapid.IntRange(0, count).Draw(t, "min")
		c.count, c.min = append(c.count, count), append(c.min, least)
		sum, all = sum+least, all+count
	}
	if c.MinMember = rapid.IntRange(0, all).Draw(t, "members"); sum == 0 {
		c.MinMember = max(c.MinMember, 1)
	}
	return c
}

func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%+v, budgets %v\n", w.rules, w.budgets)
	for _, n := range w.nodes {
		fmt.Fprintf(&b, "%s: %s, zone %s\n", n.Name, show(n.Status.Allocatable), n.Labels["zone"])
	}
	for _, q := range w.queues {
		fmt.Fprintf(&b, "queue %s in %q: guarantee %s, deserved %s, capability %s, kept %v, weighed %v\n", q.name, q.parent,
			show(q.guarantee), show(q.deserved), show(q.capability), q.kept, q.weighed)
	}
	for _, g := range w.gangs {
		pods := g.Pods
		g.Pods = nil
		fmt.Fprintf(&b, "%+v\n", g.Gang)
		for i, p := range pods {
			fmt.Fprintf(&b, "  %s, %s old: %+v\n", showPod(g.templates[i]), now.Sub(p.Started), p)
		}
	}
	return b.String()
}

func showPod(t *corev1.Pod) string {
	return fmt.Sprint(show(t.Spec.Containers[0].Resources.Requests), t.Spec.NodeSelector, len(t.Spec.Containers[0].Ports))
}

func show(l corev1.ResourceList) string {
	var parts []string
	for name, q := range l {
		parts = append(parts, fmt.Sprint(name, ":", q.String()))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func (c *testClaim) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%+v\n", c.Claim)
	for i, t := range c.templates {
		fmt.Fprintf(&b, "  %d of %d: %s\n", c.min[i], c.count[i], showPod(t))
	}
	return b.String()
}
