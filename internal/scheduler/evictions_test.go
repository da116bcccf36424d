package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// evictionWorld is a world whose pods may be evicted. Evicted pods are leaving until gone is called.
type evictionWorld struct {
	*world
	min     map[string]int // of gangs; all of their pods by default
	evicted []string       // names of pods, and "GANG for CLAIMANT"
	budgets []*policyv1.PodDisruptionBudget
	lost    bool // evictions are requested and not carried out
}

func newEvictionWorld(t testing.TB, queues ...*schedulingv1beta1.Queue) *evictionWorld {
	return evictionWorldOf(t, Evictions{}, queues...)
}

func evictionWorldOf(t testing.TB, cfg Evictions, queues ...*schedulingv1beta1.Queue) *evictionWorld {
	w := &evictionWorld{min: map[string]int{}}
	cfg.Budgets = func() []*policyv1.PodDisruptionBudget { return w.budgets }
	w.world = worldOf(t, Config{Evictions: cfg}, queues...)
	w.writes = true
	w.SetEvictors(w)
	return w
}

func (w *evictionWorld) GangOf(p *corev1.Pod) (string, bool) {
	return p.Name[:strings.LastIndexByte(p.Name, '-')], true
}

func (w *evictionWorld) Owns(string) bool { return true }

func (w *evictionWorld) Describe(key string) (GangTerms, bool) {
	g := w.started[key]
	if g == nil {
		return GangTerms{}, false
	}
	least, found := w.min[key]
	if !found {
		least = g.MinMember
	}
	return GangTerms{Priority: g.Priority, MinMember: least}, true
}

func (w *evictionWorld) Evict(x Eviction) {
	for _, ref := range x.Pods {
		w.evicted = append(w.evicted, ref.Name.Name)
		if w.lost {
			continue
		}
		p, _ := w.cluster.Pod(ref.Name)
		p = p.DeepCopy()
		p.DeletionTimestamp = ptr.To(metav1.NewTime(w.clock.Now()))
		w.cluster.UpsertPod(p)
	}
	w.evicted = append(w.evicted, x.Gang+" for "+x.For)
}

// left returns what was evicted since the last call.
func (w *evictionWorld) left() string {
	slices.Sort(w.evicted)
	out := strings.Join(w.evicted, ", ")
	w.evicted = nil
	return out
}

// gone removes pods.
func (w *evictionWorld) gone(names ...string) {
	for key, g := range w.started {
		for _, a := range w.on[key] {
			if p := bound(g, a); slices.Contains(names, p.Name) {
				w.cluster.DeletePod(p)
			}
		}
	}
}

// important returns a gang of priority 100.
func (w *evictionWorld) important(key string, n int, cpu string) *Gang {
	g := w.gang(key, n, cpu)
	g.Priority = 100
	return g
}

// put submits a gang that must fit.
func (w *evictionWorld) put(g *Gang) {
	w.t.Helper()
	w.Submit(g)
	w.run()
	if !strings.Contains(w.heard(), g.Key+"+") {
		w.t.Fatalf("gang %s does not fit", g.Key)
	}
}

// look lets time pass until refused claimants are considered again.
func (w *evictionWorld) look() {
	w.clock.Step(lookEvery)
	w.poke()
	w.run()
}

func TestAGangOfHigherPriorityTakesThePlaceOfOthers(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "4")
	w.put(w.gang("low", 4, "1"))
	w.Submit(w.gang("equal", 1, "1"))
	w.run()
	expect(t, w.heard(), "equal: NotEnoughResources")
	expect(t, w.left(), "")
	w.Submit(w.important("high", 2, "1"))
	w.run()
	expect(t, w.left(), "low for high, low-0, low-1, low-2, low-3")
	expect(t, w.heard(), "high: NotEnoughResources")

	// Small gangs do not get the capacity that becomes free, and no more pods are evicted.
	w.gone("low-0")
	w.Submit(w.gang("small", 1, "1"))
	w.look()
	expect(t, w.heard(), "small: NotEnoughResources")
	expect(t, w.left(), "")
	w.gone("low-1")
	w.run()
	expect(t, w.heard(), "high+2")
	w.gone("low-2", "low-3")
	w.run()
	expect(t, w.heard(), "equal+1, small+1")
	if len(w.evictions.claims)+len(w.evictions.going) != 0 {
		t.Errorf("claims %v, going %v", w.evictions.claims, w.evictions.going)
	}
}

func TestSurplusGoesBeforeWholeGangs(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "6")
	w.put(w.gang("whole", 2, "1"))
	w.min["elastic"] = 2
	w.put(w.gang("elastic", 4, "1"))
	w.Submit(w.important("high", 2, "1"))
	w.run()
	if got := w.left(); !strings.HasPrefix(got, "elastic for high, elastic-") || strings.Contains(got, "whole") || strings.Count(got, ",") != 2 {
		t.Errorf("evicted: %s", got)
	}
}

func TestAClaimEndsWithItsGang(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "4")
	w.put(w.gang("low", 4, "1"))
	w.Submit(w.important("high", 4, "1"))
	w.run()
	expect(t, w.left(), "low for high, low-0, low-1, low-2, low-3")
	w.Submit(w.gang("other", 2, "1"))
	w.gone("low-0", "low-1")
	w.run()
	expect(t, w.heard(), "high: NotEnoughResources, other: NotEnoughResources")
	w.Withdraw("high")
	w.run()
	w.run() // the cycle that the release has woken
	expect(t, w.heard(), "other+2")
}

func TestAClaimEndsWithItsNodeAndIsMadeAgainElsewhere(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "2")
	w.put(w.gang("a", 2, "1"))
	w.node("n2", "2")
	w.put(w.gang("b", 2, "1"))
	w.Submit(w.important("high", 2, "1"))
	w.run()
	first := w.left()
	w.heard()
	node, other := "n1", "b for high, b-0, b-1"
	if strings.HasPrefix(first, "b") {
		node, other = "n2", "a for high, a-0, a-1"
	}
	w.cluster.DeleteNode(node)
	w.look()
	expect(t, w.left(), other)
}

// TestARestartEvictsNobodyElse checks that a scheduler that begins while victims are leaving keeps
// their capacity for the claimant, although it knows nothing of the claim.
func TestARestartEvictsNobodyElse(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "4")
	w.put(w.gang("low", 4, "1"))
	w.node("n2", "4")
	w.put(w.gang("low2", 4, "1"))
	w.Submit(w.important("high", 4, "1"))
	w.run()
	victims := w.left()
	w.heard()

	again, err := New(Config{Cluster: w.cluster, Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	again.SetEvictors(w)
	w.Scheduler = again
	w.cluster.SetClaims("high", nil)
	if strings.HasPrefix(victims, "low2") {
		w.gone("low2-0", "low2-1", "low2-2")
	} else {
		w.gone("low-0", "low-1", "low-2")
	}
	w.Submit(w.gang("small", 1, "1"))
	w.Submit(w.important("high", 4, "1"))
	w.run()
	w.look()
	expect(t, w.left(), "")
	expect(t, w.heard(), "high: NotEnoughResources, small: NotEnoughResources")
	w.gone("low-3", "low2-3")
	w.run()
	if got := w.heard(); !strings.HasPrefix(got, "high+4") {
		t.Errorf("heard %s", got)
	}
}

// TestATaskTakesThePlaceOfAnother has a pod of a task of higher priority wait above the minimum of a gang
// whose other pods fill the node.
func TestATaskTakesThePlaceOfAnother(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "3")
	w.min["elastic"] = 1
	w.put(w.gang("elastic", 3, "1"))
	leads := func(outranks bool) *Gang {
		g := w.gang("elastic", 2, "1")
		p := template("1").DeepCopy()
		p.Spec.Priority = ptr.To[int32](50)
		g.Demands[0].Template, g.Demands[0].Min, g.MinMember, g.Surplus = p, 0, 0, 2
		for i := range g.Demands[0].Units {
			g.Demands[0].Units[i].Name = fmt.Sprint("elastic-lead", i)
		}
		g.Outranks = outranks
		return g
	}
	w.Submit(leads(false))
	w.run()
	expect(t, w.left(), "")
	w.Submit(leads(true))
	w.run()
	first := w.left()
	if !strings.HasPrefix(first, "elastic for elastic, elastic-") || strings.Count(first, ",") != 1 {
		t.Fatalf("evicted: %q", first)
	}
	expect(t, w.heard(), "elastic: NotEnoughResources, elastic: NotEnoughResources")
	w.gone(strings.Split(first, ", ")[1])
	w.run()
	expect(t, w.heard(), "elastic+1") // the reason for which the other one waits is the same
	// The second one takes the place of another pod; the last one is the minimum.
	w.look()
	if second := w.left(); strings.Count(second, ",") != 1 || second == first {
		t.Errorf("evicted: %q", second)
	}
}

// TestSurplusTakesThePlaceOfLowerSurplus has pods above a gang's minimum wait while other gangs fill the
// node with a minimum of 2 pods and 4 pods above it.
func TestSurplusTakesThePlaceOfLowerSurplus(t *testing.T) {
	for name, c := range map[string]struct {
		cfg      Evictions
		queue    string // of the others
		change   func(*Gang)
		capacity string // of the queue, in CPUs; the node has more
		left     int    // pods that leave
		placed   int    // pods above the minimum that get their places
	}{
		"as many as are above the minimum": {queue: "default", left: 4, placed: 4},
		"no more than it has":              {queue: "default", change: func(g *Gang) { g.Demands[0].Units = g.Demands[0].Units[:3] }, left: 1, placed: 1},
		"none at equal priority":           {queue: "default", change: func(g *Gang) { g.Priority = 0 }},
		"none if it never preempts": {queue: "default", change: func(g *Gang) {
			p := g.Demands[0].Template.DeepCopy()
			p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
			g.Demands[0].Template = p
		}},
		"none without preemption":           {queue: "default", cfg: Evictions{NoPreemption: true}},
		"none of another queue":             {queue: "second"},
		"across queues":                     {queue: "second", cfg: Evictions{PreemptAcross: true}, left: 4, placed: 4},
		"in a queue that may have no more":  {queue: "default", capacity: "8", left: 4, placed: 4},
		"one pod takes the places of three": {queue: "default", change: func(g *Gang) { g.Demands[0].Template = template("3") }, left: 3, placed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue("default", nil)
			if c.capacity != "" {
				q.Spec.Capability = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(c.capacity)}
			}
			w := evictionWorldOf(t, c.cfg, q, queue("second", nil))
			w.min["low"], w.min["high"] = 2, 2
			low := w.elastic("low", 2, 6)
			low.Queue = c.queue
			high := w.elastic("high", 2, 20)
			high.Priority = 100
			if c.change != nil {
				c.change(high)
			}
			size := high.Demands[0].Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
			room := 6 + 2*int(size.Value())
			if c.capacity != "" {
				room += 2
			}
			// 1. Both gangs have their minimums, and low what is above it.
			w.node("n1", fmt.Sprint(room-6))
			only := *high
			only.Demands = slices.Clone(high.Demands)
			only.Demands[0].Units, only.Surplus = high.Demands[0].Units[:2], 0
			w.put(&only)
			w.node("n2", "6")
			w.put(low)
			// 2. The pods of high above its minimum.
			rest := *high
			rest.Demands = slices.Clone(high.Demands)
			rest.Demands[0].Units = high.Demands[0].Units[2:]
			rest.MinMember, rest.Surplus = 0, len(rest.Demands[0].Units)
			w.Submit(&rest)
			w.run()
			left := 0
			for range 4 {
				pods := slices.DeleteFunc(slices.Clone(w.evicted), func(name string) bool { return strings.Contains(name, " ") })
				left, w.evicted = left+len(pods), nil
				for _, u := range low.Demands[0].Units {
					if p, _ := w.cluster.Pod(u); p != nil && slices.Contains(pods, u.Name) {
						w.cluster.DeletePod(p)
					}
				}
				w.look()
			}
			if placed := len(w.on["high"]) - 2; left != c.left || placed != c.placed {
				t.Fatalf("%d pods left for %d, want %d for %d", left, placed, c.left, c.placed)
			}
			// 3. Nobody leaves the minimum, and low takes nothing back.
			w.evicted = nil
			back := *low
			back.Demands = slices.Clone(low.Demands)
			back.Demands[0].Units = back.Demands[0].Units[2 : 2+c.left]
			back.MinMember, back.Surplus = 0, c.left
			w.Submit(&back)
			for range 3 {
				w.look()
			}
			expect(t, w.left(), "")
		})
	}
}

// TestSurplusTakesAsManyPlacesAsBudgetsAllow has 8 pods above a gang's minimum, of which a budget lets 2 go,
// and 8 pods of higher priority that wait.
func TestSurplusTakesAsManyPlacesAsBudgetsAllow(t *testing.T) {
	w := newEvictionWorld(t)
	w.min["low"], w.min["high"] = 1, 1
	w.budgets = []*policyv1.PodDisruptionBudget{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 2},
	}}
	w.node("n1", "9")
	w.put(w.elastic("low", 1, 9))
	high := w.important("high", 8, "1")
	high.MinMember, high.Demands[0].Min, high.Surplus = 0, 0, 8
	w.Submit(high)
	w.run()
	if got := w.left(); strings.Count(got, ",") != 2 {
		t.Errorf("evicted: %s", got)
	}
}

func TestAVictimDoesNotEvictItsEvictor(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "2")
	w.put(w.gang("low", 2, "1"))
	w.Submit(w.important("high", 2, "1"))
	w.run()
	w.left()
	w.gone("low-0", "low-1")
	w.run()
	expect(t, w.heard(), "high+2, high: NotEnoughResources")
	w.Submit(w.gang("low", 2, "1"))
	for range 5 {
		w.look()
	}
	expect(t, w.left(), "")
	expect(t, w.heard(), "low: NotEnoughResources")
}

func TestAQueueGetsBackWhatItDeserves(t *testing.T) {
	deserves := func(name, cpu string, change func(*schedulingv1beta1.QueueSpec)) *schedulingv1beta1.Queue {
		q := queue(name, nil)
		q.Spec.Deserved = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		if change != nil {
			change(&q.Spec)
		}
		return q
	}
	kept := func(s *schedulingv1beta1.QueueSpec) { s.Reclaimable = ptr.To(false) }
	guaranteed := func(s *schedulingv1beta1.QueueSpec) {
		s.Guarantee.Resource = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	}
	for what, c := range map[string]struct {
		a, b *schedulingv1beta1.Queue
		want string
	}{
		"what others have above their share":       {deserves("a", "2", nil), deserves("b", "2", nil), "x for y, x-0, x-1"},
		"what others have, and say nothing about":  {queue("a", nil), deserves("b", "2", nil), "x for y, x-0, x-1"},
		"not what others deserve":                  {deserves("a", "4", nil), deserves("b", "2", nil), ""},
		"not from a queue that is not reclaimable": {deserves("a", "2", kept), deserves("b", "2", nil), ""},
		"its guarantee, even from a queue that is not reclaimable": {deserves("a", "2", kept), deserves("b", "2", guaranteed),
			"x for y, x-0, x-1"},
		"nothing if it states nothing": {deserves("a", "2", nil), queue("b", nil), ""},
	} {
		t.Run(what, func(t *testing.T) {
			w := newEvictionWorld(t, c.a, c.b)
			w.node("n1", "4")
			in := func(queue string, g *Gang) *Gang { g.Queue = queue; return g }
			w.put(in("a", w.gang("x", 2, "1")))
			w.clock.Step(time.Minute) // x is the gang with more lost work
			w.put(in("a", w.gang("z", 2, "1")))
			w.Submit(in("b", w.gang("y", 2, "1")))
			w.run()
			got := w.left()
			if strings.HasPrefix(got, "z ") {
				got = strings.ReplaceAll(got, "z", "x")
			}
			expect(t, got, c.want)
		})
	}
}

func TestWhoIsNotEvicted(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(*evictionWorld, *Gang, *Gang)
		why     string
	}{
		"protected pods": {func(_ *evictionWorld, low, _ *Gang) {
			low.Demands[0].Template = annotatedTemplate(schedulingv1beta1.PreemptableAnnotation, "false")
		}, "protected"},
		"pods that have just started": {func(_ *evictionWorld, low, _ *Gang) {
			low.Demands[0].Template = annotatedTemplate(schedulingv1beta1.CooldownTimeAnnotation, "1h")
		}, "cool-down"},
		"pods whose cool-down time cannot be read": {func(_ *evictionWorld, low, _ *Gang) {
			low.Demands[0].Template = annotatedTemplate(schedulingv1beta1.CooldownTimeAnnotation, "soon")
		}, "protected"},
		"anybody by a gang that never evicts": {func(_ *evictionWorld, _, high *Gang) {
			p := template("1").DeepCopy()
			p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
			high.Demands[0].Template = p
		}, "preemptionPolicy"},
		"anybody by a gang with affinity to pods": {func(_ *evictionWorld, _, high *Gang) {
			p := template("1").DeepCopy()
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone",
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{}}}
			high.Demands[0].Template = p
		}, "spread"},
		"gangs that could not make room": {func(w *evictionWorld, _, high *Gang) {
			high.Demands[0].Template, high.MinMember = template("3"), 2
		}, "would not fit"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newEvictionWorld(t)
			w.node("n1", "4")
			low, high := w.gang("low", 4, "1"), w.important("high", 2, "1")
			c.prepare(w, low, high)
			w.put(low)
			var why Reason
			high.Owner = &teller{w.world, &why}
			w.Submit(high)
			w.run()
			w.look()
			expect(t, w.left(), "")
			if !strings.Contains(why.EvictionDetail, c.why) {
				t.Errorf("the owner is told %q", why.EvictionDetail)
			}
		})
	}
}

// teller keeps the last reason.
type teller struct {
	*world
	why *Reason
}

func (o *teller) Waiting(_ *Gang, why Reason) { *o.why = why }

func annotatedTemplate(key, value string) *corev1.Pod {
	p := template("1").DeepCopy()
	p.Annotations = map[string]string{key: value, batchv1alpha1.TaskSpecKey: ""}
	return p
}

func TestABudgetIsRespectedIfThereIsAnotherWay(t *testing.T) {
	w := newEvictionWorld(t)
	labelled := template("1").DeepCopy()
	labelled.Labels = map[string]string{"app": "a"}
	w.budgets = []*policyv1.PodDisruptionBudget{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labelled.Labels}},
	}}
	w.node("n1", "4")
	a := w.gang("a", 2, "1")
	a.Demands[0].Template = labelled
	w.put(w.gang("b", 2, "1"))
	w.clock.Step(time.Hour) // b would be the more expensive one
	w.put(a)
	w.Submit(w.important("high", 2, "1"))
	w.run()
	expect(t, w.left(), "b for high, b-0, b-1")
	w.heard()
	// There is no other way now.
	w.Submit(w.important("next", 2, "1"))
	w.run()
	expect(t, w.left(), "a for next, a-0, a-1")
}

func TestEveryHeadOfAShapeGetsItsOwnVictims(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "4")
	for i := range 4 {
		w.put(w.gang(fmt.Sprint("low", i), 1, "1"))
	}
	for i := range 6 {
		w.Submit(w.important(fmt.Sprint("high", i), 1, "1"))
	}
	w.run()
	if n := strings.Count(w.left(), " for "); n != 4 {
		t.Errorf("%d evictions, want 4", n)
	}
	expect(t, w.heard(), "high0: NotEnoughResources, high1: NotEnoughResources, high2: NotEnoughResources, "+
		"high3: NotEnoughResources, high4: NotEnoughResources, high5: NotEnoughResources")
	w.gone("low0-0", "low1-0", "low2-0", "low3-0")
	w.run()
	expect(t, w.heard(), "high0+1, high1+1, high2+1, high3+1")
}

func TestAGangIsEvictedOnlySoOften(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "1")
	times := 0
	for range evictionsMax + 3 {
		low := w.gang("low", 1, "1")
		w.Submit(low)
		w.run()
		w.Submit(w.important("high", 1, "1"))
		w.run()
		if w.left() == "" {
			break
		}
		times++
		w.gone("low-0")
		w.run()
		w.finish("high")
		w.Withdraw("low")
		delete(w.on, "low")
		w.clock.Step(time.Second)
	}
	if times != evictionsMax {
		t.Errorf("%d times", times)
	}
	w.clock.Step(evictionsWindow)
	w.poke()
	w.run()
	expect(t, w.left(), "low for high, low-0")
}

// TestAnEvictionThatIsNotCarriedOut checks that a claim does not wait for ever for pods that are not
// deleted.
func TestAnEvictionThatIsNotCarriedOut(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "1")
	w.put(w.gang("low", 1, "1"))
	w.lost = true
	w.Submit(w.important("high", 1, "1"))
	w.run()
	expect(t, w.left(), "low for high, low-0")
	w.look()
	expect(t, w.left(), "")
	w.lost = false
	w.clock.Step(goingPatience + time.Second)
	w.poke()
	w.run()
	expect(t, w.left(), "low for high, low-0")
	w.gone("low-0")
	w.run()
	expect(t, w.heard(), "high+1, high: NotEnoughResources")
}

func TestADryRunEvictsNobody(t *testing.T) {
	w := newEvictionWorld(t)
	w.evictions.cfg.Mode = EvictionDryRun
	w.node("n1", "1")
	w.put(w.gang("low", 1, "1"))
	var why Reason
	high := w.important("high", 1, "1")
	high.Owner = &teller{w.world, &why}
	w.Submit(high)
	w.run()
	expect(t, w.left(), "")
	expect(t, why.Eviction, "nothing is evicted (--eviction=dry-run); these pods would have to leave: low (the whole gang, 1 pod)")
	w.evictions.cfg.Mode = EvictionOff
	w.Submit(high)
	w.run()
	expect(t, w.left(), "")
	expect(t, why.Eviction, "")
}

// TestGangsOfOtherNamespacesAreNotNamed checks what users are told of victims and claimants of other
// namespaces.
func TestGangsOfOtherNamespacesAreNotNamed(t *testing.T) {
	for mode, begin := range map[EvictionMode]string{
		EvictionOn:     "waits until evicted pods have left: ",
		EvictionDryRun: "nothing is evicted (--eviction=dry-run); these pods would have to leave: ",
	} {
		t.Run(string(mode), func(t *testing.T) {
			w := newEvictionWorld(t)
			w.evictions.cfg.Mode, w.pending.byNamespace = mode, mode == EvictionDryRun
			w.node("n1", "2")
			w.put(w.gang("job/mine/low", 1, "1"))
			w.put(w.gang("job/theirs/low", 1, "1"))
			told := map[string]*Reason{}
			for _, key := range []string{"job/mine/high", "job/theirs/high"} {
				told[key] = &Reason{}
				g := w.important(key, 2, "1")
				g.Owner = &teller{w.world, told[key]}
				w.Submit(g)
				w.run()
			}
			const other = "a gang of another namespace (the whole gang, 1 pod)"
			expect(t, told["job/mine/high"].Eviction, begin+"job/mine/low (the whole gang, 1 pod), "+other)
			if mode == EvictionDryRun { // with EvictionOn, the first one has a claim on all room
				expect(t, told["job/theirs/high"].Eviction, begin+other+", job/theirs/low (the whole gang, 1 pod)")
			}
		})
	}
	expect(t, GangFor("theirs", "job/mine/high"), "a gang of another namespace")
	expect(t, GangFor("mine", "job/mine/high"), "job/mine/high")
}

// TestPriorityCountsInAFullQueue checks that gangs leave a queue that may hold no more, although the
// nodes have room, and that others do not get what becomes free in the queue meanwhile.
func TestPriorityCountsInAFullQueue(t *testing.T) {
	w := newEvictionWorld(t, queue("q", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}))
	in := func(g *Gang) *Gang { g.Queue = "q"; return g }
	w.node("n1", "8")
	w.put(in(w.gang("low", 2, "1")))
	w.Submit(in(w.important("high", 2, "1")))
	w.run()
	expect(t, w.heard(), "high: QueueOverCapability")
	expect(t, w.left(), "low for high, low-0, low-1")
	w.gone("low-0")
	w.Submit(in(w.gang("small", 1, "1")))
	w.run()
	expect(t, w.heard(), "small: QueueOverCapability")
	w.gone("low-1")
	w.run()
	expect(t, w.heard(), "high+2")
}

// TestRulesOfEvictionCanBeSwitchedOff covers schedulers that do not preempt, or do not reclaim.
func TestRulesOfEvictionCanBeSwitchedOff(t *testing.T) {
	two := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	for what, c := range map[string]struct {
		cfg                            Evictions
		preempts, reclaims, guaranteed string
	}{
		"both": {Evictions{}, "low for high, low-0, low-1", "low for due, low-0, low-1", "low for due, low-0, low-1"},
		"no preemption": {Evictions{NoPreemption: true}, "", "low for due, low-0, low-1",
			"low for due, low-0, low-1"},
		"no reclaim": {Evictions{NoReclaim: true}, "low for high, low-0, low-1", "", "low for due, low-0, low-1"},
		"neither":    {Evictions{NoPreemption: true, NoReclaim: true}, "", "", "low for due, low-0, low-1"},
	} {
		t.Run(what, func(t *testing.T) {
			w := evictionWorldOf(t, c.cfg)
			w.node("n1", "2")
			w.put(w.gang("low", 2, "1"))
			w.Submit(w.important("high", 2, "1"))
			w.run()
			expect(t, w.left(), c.preempts)

			for _, guaranteed := range []bool{false, true} {
				a, b := queue("a", nil), queue("b", nil)
				b.Spec.Deserved = two
				want := c.reclaims
				if guaranteed {
					b.Spec.Guarantee.Resource, want = two, c.guaranteed
				}
				w = evictionWorldOf(t, c.cfg, a, b)
				w.node("n1", "2")
				low, due := w.gang("low", 2, "1"), w.gang("due", 2, "1")
				low.Queue, due.Queue = "a", "b"
				w.put(low)
				w.Submit(due)
				w.run()
				expect(t, w.left(), want)
			}
		})
	}
}
