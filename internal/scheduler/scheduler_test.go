package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// world is a scheduler on a model that the test drives, with an owner that records the calls it
// gets.
type world struct {
	*Scheduler
	t       testing.TB
	clock   *testingclock.FakeClock
	said    []string                // "key: code" for Waiting, "key+n" for Commit, in order
	on      map[string][]Assignment // per gang key
	started map[string]*Gang
	writes  bool // placed pods appear in the model at once, as if written and watched
}

func newWorld(t testing.TB, queues ...*schedulingv1beta1.Queue) *world {
	t.Helper()
	return worldOf(t, Config{}, queues...)
}

func worldOf(t testing.TB, cfg Config, queues ...*schedulingv1beta1.Queue) *world {
	t.Helper()
	c := cluster.New(cluster.Config{Ours: func(*corev1.Pod) bool { return true }})
	w := &world{
		t: t, clock: testingclock.NewFakeClock(time.Unix(1000, 0)), on: map[string][]Assignment{}, started: map[string]*Gang{},
	}
	cfg.Cluster, cfg.Clock = c, w.clock
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Scheduler = s
	c.UpsertQueue(queue("default", nil))
	for _, q := range queues {
		c.UpsertQueue(q)
	}
	return w
}

func (w *world) Commit(g *Gang, placed []Assignment) {
	w.said = append(w.said, fmt.Sprintf("%s+%d", g.Key, len(placed)))
	w.on[g.Key] = append(w.on[g.Key], placed...)
	w.started[g.Key] = g
	if w.writes {
		for _, a := range placed {
			w.cluster.UpsertPod(bound(g, a))
		}
	}
}

func (w *world) Waiting(g *Gang, why Reason) {
	if why.Ahead != nil {
		w.said = append(w.said, fmt.Sprintf("%s: pods %v", g.Key, why.Ahead))
		return
	}
	w.said = append(w.said, g.Key+": "+why.Code)
}

// run lets the scheduler run cycles until there is nothing to do, if anything has woken it.
func (w *world) run() {
	select {
	case <-w.wake:
	case <-w.cluster.Changed():
	default:
		if w.clock.Now().Before(w.retry) {
			return
		}
	}
	for rounds := 0; w.cycle(); rounds++ {
		if rounds > 10000 {
			w.t.Fatal("the scheduler does not come to rest")
		}
	}
}

// heard returns the calls recorded since the last heard, and clears them.
func (w *world) heard() string {
	slices.Sort(w.said)
	out := strings.Join(w.said, ", ")
	w.said = nil
	return out
}

func (w *world) node(name, cpu string) {
	w.cluster.UpsertNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Gi"),
			corev1.ResourcePods: resource.MustParse("110"),
		}},
	})
}

// finish ends every pod of a gang.
func (w *world) finish(key string) {
	g := w.started[key]
	for _, a := range w.on[key] {
		p := bound(g, a)
		w.cluster.UpsertPod(p)
		p = p.DeepCopy()
		p.Status.Phase = corev1.PodSucceeded
		w.cluster.UpsertPod(p)
	}
	delete(w.on, key)
}

func bound(g *Gang, a Assignment) *corev1.Pod {
	d := g.Demands[a.Demand]
	p := d.Template.DeepCopy()
	p.Namespace, p.Name = d.Units[a.Unit].Namespace, d.Units[a.Unit].Name
	p.UID = types.UID(p.Name)
	p.CreationTimestamp = metav1.NewTime(g.Created)
	p.Spec.NodeName = a.Node
	p.Annotations = maps.Clone(p.Annotations)
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[schedulingv1beta1.QueueNameAnnotation] = g.Queue
	maps.Copy(p.Annotations, a.Annotations)
	if parts := strings.Split(g.Key, "/"); parts[0] == "job" && len(parts) == 3 {
		p.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: batchv1alpha1.GroupVersion.String(), Kind: "Job", Name: parts[2], Controller: ptr.To(true),
		}}
	}
	return p
}

func queue(name string, capability corev1.ResourceList) *schedulingv1beta1.Queue {
	return &schedulingv1beta1.Queue{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       schedulingv1beta1.QueueSpec{Weight: 1, Capability: capability},
	}
}

var templates = map[string]*corev1.Pod{}

func template(cpu string) *corev1.Pod {
	if templates[cpu] == nil {
		templates[cpu] = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Mi"),
			}},
		}}}}
	}
	return templates[cpu]
}

// gang makes a gang of n pods, all of which are required.
func (w *world) gang(key string, n int, cpu string) *Gang {
	g := &Gang{Key: key, Queue: "default", MinMember: n, Created: w.clock.Now(), Owner: w}
	d := Demand{Template: template(cpu), Min: n}
	for i := range n {
		d.Units = append(d.Units, types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("%s-%d", key, i)})
	}
	g.Demands = []Demand{d}
	return g
}

func expect(t testing.TB, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
}

func TestTwoGangsThatFitAloneButNotTogetherNeverBothHoldAPart(t *testing.T) {
	w := newWorld(t)
	w.node("n1", "4")
	w.node("n2", "4")
	w.Submit(w.gang("a", 5, "1"))
	w.Submit(w.gang("b", 5, "1"))
	w.run()
	expect(t, w.heard(), "a+5, b: NotEnoughResources")
	w.run()
	expect(t, w.heard(), "")
	w.finish("a")
	w.run()
	expect(t, w.heard(), "b+5")
}

func TestAGangThatCannotFitSaysSoOnceAndStartsWhenANodeComes(t *testing.T) {
	w := newWorld(t)
	w.node("n1", "2")
	w.Submit(w.gang("a", 3, "1"))
	w.run()
	expect(t, w.heard(), "a: NotEnoughResources")
	for range 10 {
		w.clock.Step(time.Minute) // the periodic retry
		w.run()
	}
	expect(t, w.heard(), "")
	w.node("n2", "2")
	w.run()
	expect(t, w.heard(), "a+3")
}

func TestHigherPriorityGoesFirstAndPartlyStartedBeforeAll(t *testing.T) {
	w := newWorld(t)
	w.node("n1", "2")
	low, high, resumed := w.gang("low", 1, "1"), w.gang("high", 1, "1"), w.gang("resumed", 1, "1")
	high.Priority, resumed.Resume = 10, true
	for _, g := range []*Gang{low, high, resumed} {
		w.Submit(g)
	}
	w.run()
	expect(t, w.heard(), "high+1, low: NotEnoughResources, resumed+1")
}

func TestQueues(t *testing.T) {
	limited := queue("limited", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")})
	closed := queue("closed", nil)
	closed.Status.State = schedulingv1beta1.QueueClosed
	w := newWorld(t, limited, closed)
	w.node("n1", "16")
	in := func(key, queue string, n int) *Gang {
		g := w.gang(key, n, "1")
		g.Queue = queue
		return g
	}
	w.writes = true
	w.Submit(in("fits", "limited", 2))
	w.run()
	w.Submit(in("over", "limited", 1))
	w.Submit(in("shut", "closed", 1))
	w.Submit(in("lost", "nowhere", 1))
	w.run()
	expect(t, w.heard(), "fits+2, lost: QueueNotFound, over: QueueOverCapability, shut: QueueClosed")

	w.cluster.UpsertQueue(queue("nowhere", nil))
	w.run()
	expect(t, w.heard(), "lost+1")
	open := closed.DeepCopy()
	open.Status.State = schedulingv1beta1.QueueOpen
	w.cluster.UpsertQueue(open)
	w.run()
	expect(t, w.heard(), "shut+1")
	w.finish("fits")
	w.run()
	expect(t, w.heard(), "over+1")
}

func TestPodsAboveTheMinimumFollowWhenRoomAppears(t *testing.T) {
	w := newWorld(t)
	w.node("n1", "2")
	g := w.gang("a", 5, "1")
	g.MinMember, g.Demands[0].Min = 2, 0
	w.Submit(g)
	w.run()
	expect(t, w.heard(), "a+2, a: NotEnoughResources")
	w.node("n2", "1")
	w.run()
	expect(t, w.heard(), "a+1")
	units := map[int]bool{}
	for _, a := range w.on["a"] {
		units[a.Unit] = true
	}
	if len(units) != 3 {
		t.Fatalf("units placed: %v", w.on["a"])
	}
}

// TestPodsAboveTheMinimumAreDividedByShares checks that room which becomes free at once for several
// elastic gangs does not all go to the first of them.
func TestPodsAboveTheMinimumAreDividedByShares(t *testing.T) {
	qa, qb := queue("a", nil), queue("b", nil)
	qb.Spec.Weight = 3
	w := newWorld(t, qa, qb)
	w.node("n1", "2")
	for _, name := range []string{"a", "b"} {
		g := w.gang(name, 20, "1")
		g.Queue, g.MinMember, g.Demands[0].Min, g.Surplus = name, 1, 0, 19
		w.Submit(g)
	}
	w.run()
	w.node("n2", "10")
	w.run()
	if a, b := len(w.on["a"]), len(w.on["b"]); a != 3 || b != 9 {
		t.Errorf("%d and %d pods; want 3 and 9", a, b)
	}
}

func TestWithdrawnAndReplacedGangs(t *testing.T) {
	w := newWorld(t)
	w.node("n0", "1")
	w.Submit(w.gang("a", 2, "1"))
	w.Submit(w.gang("b", 2, "1"))
	w.run()
	expect(t, w.heard(), "a: NotEnoughResources, b: NotEnoughResources")
	w.Withdraw("a")
	w.Submit(w.gang("b", 1, "1"))
	w.run()
	expect(t, w.heard(), "b+1")
}

func TestAGangThatCanNeverBePlacedIsToldSo(t *testing.T) {
	w := newWorld(t)
	g := w.gang("a", 1, "1")
	g.MinMember = 3
	w.Submit(g)
	w.run()
	expect(t, w.heard(), "a: Unschedulable")
}

func TestForgottenPodsMakeRoom(t *testing.T) {
	w := newWorld(t)
	w.node("n1", "1")
	w.Submit(w.gang("a", 1, "1"))
	w.Submit(w.gang("b", 1, "1"))
	w.run()
	expect(t, w.heard(), "a+1, b: NotEnoughResources")
	w.cluster.Forget(types.NamespacedName{Namespace: "ns", Name: "a-0"}, 0)
	w.run()
	expect(t, w.heard(), "b+1")
}

// TestNoLostWakeUps performs random events in random order. No node is overcommitted, each gang
// holds either nothing or at least its minimum, and at rest no gang waits that a fresh placement on
// the same cluster would place.
func TestNoLostWakeUps(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t, queue("limited", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("6")}))
		w.cfg.CyclePods = rapid.IntRange(1, 20).Draw(r, "cyclePods")
		cpus := map[string]string{}
		waiting := map[string]*Gang{}
		serial := 0
		node := func(r *rapid.T) string { return fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(r, "node")) }
		pick := func(r *rapid.T, m map[string]*Gang) string {
			keys := make([]string, 0, len(m))
			for k := range m {
				keys = append(keys, k)
			}
			if len(keys) == 0 {
				r.Skip("none")
			}
			slices.Sort(keys)
			return rapid.SampledFrom(keys).Draw(r, "key")
		}
		rest := func() {
			w.run()
			for key, g := range waiting {
				if n := len(w.on[key]); n >= g.MinMember {
					if n == len(g.Demands[0].Units) {
						delete(waiting, key)
					}
				} else if n > 0 {
					r.Fatalf("gang %s holds %d of its minimum %d", key, n, g.MinMember)
				}
			}
			for i, n := range w.view.All() {
				if n.Used.At(place.CPU) > n.Allocatable.At(place.CPU) {
					r.Fatalf("node %s (%d) is overcommitted: %v of %v", n.Name, i, n.Used, n.Allocatable)
				}
			}
			fresh := w.cluster.NewView()
			w.cluster.Refresh(fresh)
			used := int64(0)
			for _, q := range w.cluster.Queues() {
				if q.Name == "limited" {
					used = q.Used.At(place.CPU)
				}
			}
			for key, g := range waiting {
				class, err := place.NewClass(w.cluster.Dims(), g.Demands[0].Template)
				if err != nil {
					r.Fatal(err)
				}
				need := max(1, g.MinMember-len(w.on[key]))
				if g.Queue == "limited" && used+int64(need)*class.Request[place.CPU] > 6000 {
					continue
				}
				d := place.NewPlacer(fresh.Snapshot, place.Options{}).Place(place.Gang{MinMember: need, Demands: []place.Demand{{Class: class, Count: need}}})
				if d.Shortage == nil {
					r.Fatalf("gang %s waits though %d pods fit; lines: %+v", key, need, w.pending.shapes)
				}
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"add or resize a node": func(r *rapid.T) {
				name, cpu := node(r), rapid.IntRange(1, 6).Draw(r, "cpu")
				if old := cpus[name]; old != "" && old > fmt.Sprint(cpu) {
					r.Skip("shrinking overcommits")
				}
				cpus[name] = fmt.Sprint(cpu)
				w.node(name, cpus[name])
			},
			"remove a node": func(r *rapid.T) {
				name := node(r)
				for _, placed := range w.on {
					if slices.ContainsFunc(placed, func(a Assignment) bool { return a.Node == name }) {
						r.Skip("in use")
					}
				}
				delete(cpus, name)
				w.cluster.DeleteNode(name)
			},
			"submit a gang": func(r *rapid.T) {
				serial++
				g := w.gang(fmt.Sprintf("g%d", serial), rapid.IntRange(1, 6).Draw(r, "n"), fmt.Sprint(rapid.IntRange(1, 3).Draw(r, "cpu")))
				g.MinMember = rapid.IntRange(1, g.MinMember).Draw(r, "min")
				g.Demands[0].Min = 0
				g.Priority = int32(rapid.IntRange(0, 2).Draw(r, "priority"))
				g.Queue = rapid.SampledFrom([]string{"default", "limited"}).Draw(r, "queue")
				waiting[g.Key] = g
				w.Submit(g)
			},
			"submit one again": func(r *rapid.T) {
				g := waiting[pick(r, waiting)]
				if len(w.on[g.Key]) > 0 {
					r.Skip("its owner would ask for the rest only")
				}
				w.Submit(g)
			},
			"withdraw one": func(r *rapid.T) {
				key := pick(r, waiting)
				w.Withdraw(key)
				delete(waiting, key)
			},
			"finish one": func(r *rapid.T) {
				key := pick(r, w.started)
				if waiting[key] != nil {
					r.Skip("partly waiting")
				}
				w.finish(key)
				delete(w.started, key)
			},
			"one cycle": func(r *rapid.T) { w.cycle() },
			"":          func(r *rapid.T) {},
			"rest":      func(r *rapid.T) { rest() },
		})
		rest()
	})
}

// BenchmarkWaiting measures the end of one pod while 10,000 gangs of 5 shapes wait.
func BenchmarkWaiting(b *testing.B) {
	w := newWorld(b)
	for i := range 1000 {
		w.node(fmt.Sprintf("n%d", i), "1")
	}
	w.Submit(w.gang("holder", 1000, "1"))
	w.run()
	for i := range 10000 {
		w.Submit(w.gang(fmt.Sprintf("g%d", i), 2+i%5, "1"))
	}
	w.run()
	g := w.started["holder"]
	b.ResetTimer()
	for i := range b.N {
		p := bound(g, w.on["holder"][i%1000])
		w.cluster.UpsertPod(p)
		p = p.DeepCopy()
		p.Status.Phase = corev1.PodSucceeded
		w.cluster.UpsertPod(p)
		w.run()
		w.cluster.Assume(types.NamespacedName{Namespace: "ns", Name: p.Name}, p.Spec.NodeName, "default", "", w.classes[template("1")], nil)
	}
}

// BenchmarkJudge measures a cycle in which 1,000 waiting gangs are judged, each of a shape of its own, on
// 5,000 nodes that are full of 100,000 pods: without a right to evict others; with one, when all pods that
// may be evicted are leaving; and with one over 10,000 pods, which is not enough for any of them. Each of
// these when nothing has changed since the last cycle and all gangs are retried; when 100 pods and 100 nodes
// have changed and all gangs are retried; and when as much has changed a second after the last cycle,
// and victims are looked for again. The clock of the test stands still, so that searchesMax, which ends the
// searches of a cycle, does not apply.
func BenchmarkJudge(b *testing.B) {
	cycles := []struct {
		name         string
		retry, quiet bool
	}{{"retry/quiet", true, true}, {"retry/changes", true, false}, {"look/changes", false, false}}
	for _, x := range []struct {
		name    string
		running func(i int) (priority int32)
		waiting func(i int) (pods int, cpu string, priority int32)
	}{
		{"no right", func(int) int32 { return 0 }, func(i int) (int, string, int32) { return 2 + i, "1", 0 }},
		{"nobody left", func(int) int32 { return 0 }, func(i int) (int, string, int32) { return 2 + i, "1", int32(i) }},
		{"not enough", func(i int) int32 { return int32(i%10) * 2000 }, func(i int) (int, string, int32) {
			return 2 + i, fmt.Sprintf("%dm", 11_000+i), int32(1 + i)
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			w := newEvictionWorld(b)
			for i := range 5000 {
				w.node(fmt.Sprintf("n%d", i), "20")
			}
			for i := range 5000 {
				g := w.gang(fmt.Sprintf("g%d", i), 20, "1")
				g.Priority = x.running(i)
				w.Submit(g)
			}
			w.run()
			for i := range 1000 {
				pods, cpu, priority := x.waiting(i)
				g := w.gang(fmt.Sprintf("w%d", i), pods, cpu)
				g.Priority = priority
				w.Submit(g)
			}
			w.run()
			for _, c := range cycles {
				round := 0
				b.Run(c.name, func(b *testing.B) {
					spent := time.Duration(0)
					for range b.N {
						b.StopTimer()
						w.clock.Step(lookEvery)
						if c.retry {
							w.clock.Step(w.retry.Sub(w.clock.Now()))
						}
						for i := range 100 {
							if round++; !c.quiet {
								w.change(fmt.Sprintf("n%d", round%5000), types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("g%d-%d", round%5000, i%20)})
							}
						}
						b.StartTimer()
						began := cpuTime()
						w.cycle()
						spent += cpuTime() - began
					}
					b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "cpu-ms/op")
					if len(w.pending.gangs) == 0 {
						b.Fatal("nobody waits")
					}
				})
			}
		})
	}
}

// change changes a label of a node and the status of a pod.
func (w *world) change(node string, pod types.NamespacedName) {
	i, _ := w.view.Index(node)
	n := w.view.Node(i).Object.DeepCopy()
	n.Labels = map[string]string{"changed": fmt.Sprint(w.clock.Now().Unix())}
	w.cluster.UpsertNode(n)
	p, _ := w.cluster.Pod(pod)
	p = p.DeepCopy()
	p.Status.StartTime = ptr.To(metav1.NewTime(w.clock.Now()))
	w.cluster.UpsertPod(p)
}

// cpuTime returns the CPU time of this process, which other work on the machine changes little.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkBurst measures 10,000 one-pod gangs that arrive at once on 1,000 nodes.
func BenchmarkBurst(b *testing.B) {
	for range b.N {
		b.StopTimer()
		w := newWorld(b)
		for i := range 1000 {
			w.node(fmt.Sprintf("n%d", i), "16")
		}
		gangs := make([]*Gang, 10000)
		for i := range gangs {
			gangs[i] = w.gang(fmt.Sprintf("g%d", i), 1, "1")
		}
		b.StartTimer()
		for _, g := range gangs {
			w.Submit(g)
		}
		w.run()
		if len(w.on) != len(gangs) {
			b.Fatalf("%d placed", len(w.on))
		}
	}
}
