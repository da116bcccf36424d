package scheduler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/usage"
	"lockstep.dev/lockstep/internal/scheduler/zones"
)

// zoneNode adds a node of 4 CPUs to a zone.
func (w *world) zoneNode(name, zone string) {
	w.cluster.UpsertNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{schedulingv1beta1.RevocableZoneLabel: zone}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
		}},
	})
}

// at lets the scheduler run at a time of the first day of 1970, as its own timer would, and fails if
// the scheduler would not have woken between then and the last call.
func (w *world) at(clock string) {
	w.t.Helper()
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		w.t.Fatal(err)
	}
	now := time.Unix(0, 0).UTC().Add(time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second)
	for w.clock.Now().Before(now) {
		due := w.due()
		if !due.After(w.clock.Now()) {
			w.t.Fatalf("a cycle is due at %v, and it is %v", due, w.clock.Now())
		}
		if due.After(now) {
			due = now
		}
		w.clock.SetTime(due)
		for w.cycle() {
		}
	}
}

// inZones changes the template of a gang to one with annotations.
func inZones(g *Gang, annotations map[string]string) *Gang {
	t := g.Demands[0].Template.DeepCopy()
	t.Annotations = annotations
	g.Demands[0].Template = t
	return g
}

var willing = map[string]string{schedulingv1beta1.PreemptableAnnotation: "true"}

// nightly is a zone that is open from 00:20 to 00:30.
func nightly() *zones.Config {
	return &zones.Config{Windows: map[string]zones.Window{"a": {From: 20, To: 30, In: time.UTC}}, EvictEvery: 2 * time.Minute}
}

func zoneWorld(t *testing.T, z *zones.Config, cfg Evictions) *evictionWorld {
	t.Helper()
	w := &evictionWorld{min: map[string]int{}}
	w.world = worldOf(t, Config{Evictions: cfg, Zones: z})
	w.writes = true
	w.SetEvictors(w)
	for w.cycle() {
	}
	w.zoneNode("n1", "a")
	return w
}

func TestAZoneOpensAndCloses(t *testing.T) {
	w := zoneWorld(t, nightly(), Evictions{})
	w.Submit(inZones(w.gang("willing", 2, "1"), willing))
	w.Submit(inZones(w.gang("visitor", 1, "1"), map[string]string{schedulingv1beta1.RevocableZoneAnnotation: "a"}))
	w.Submit(w.gang("other", 1, "1"))
	w.at("00:19:59")
	expect(t, w.heard(), "other: Unschedulable, visitor: Unschedulable, willing: Unschedulable")
	w.at("00:20:00")
	expect(t, w.heard(), "visitor+1, willing+2")
	w.at("00:29:59")
	expect(t, w.left(), "")
	// The whole gang leaves; the pod that does not say that it is preemptable stays.
	w.at("00:30:00")
	expect(t, w.left(), "willing for , willing-0, willing-1")
	w.gone("willing-0", "willing-1")
	w.Submit(inZones(w.gang("willing", 2, "1"), willing))
	w.at("00:50:00")
	expect(t, w.heard(), "willing: Unschedulable")
	expect(t, w.left(), "")
}

// TestPodsThatMayNotLeaveYetDoSoLater checks that pods of a closed zone are looked at again after the
// period.
func TestPodsThatMayNotLeaveYetDoSoLater(t *testing.T) {
	w := zoneWorld(t, nightly(), Evictions{})
	w.at("00:25:00")
	cooling := map[string]string{schedulingv1beta1.PreemptableAnnotation: "true", schedulingv1beta1.CooldownTimeAnnotation: "6m30s"}
	g := inZones(w.gang("cooling", 1, "1"), cooling)
	w.put(g)
	w.at("00:31:59")
	expect(t, w.left(), "")
	w.at("00:32:00") // two minutes after the end of the zone's hours
	expect(t, w.left(), "cooling for , cooling-0")
}

func TestEvictionsFromZonesCanBeSwitchedOff(t *testing.T) {
	stay := nightly()
	stay.NoEvictions = true
	for sentence, w := range map[string]*evictionWorld{
		"by the configuration": zoneWorld(t, stay, Evictions{}),
		"by the mode":          zoneWorld(t, nightly(), Evictions{Mode: EvictionOff}),
		"in a dry run":         zoneWorld(t, nightly(), Evictions{Mode: EvictionDryRun}),
	} {
		w.at("00:25:00")
		w.put(inZones(w.gang("willing", 1, "1"), willing))
		w.at("00:40:00")
		if got := w.left(); got != "" {
			t.Errorf("%s: %s", sentence, got)
		}
		w.heard()
	}
}

// TestLabelsOfZonesMeanNothingWithoutAConfiguration checks that the label of a zone has no effect, and
// that the scheduler does not wake every minute.
func TestLabelsOfZonesMeanNothingWithoutAConfiguration(t *testing.T) {
	w := newWorld(t)
	w.zoneNode("n1", "a")
	w.Submit(w.gang("a", 1, "1"))
	w.run()
	expect(t, w.heard(), "a+1")
	if due := w.due(); due.Sub(w.clock.Now()) < 30*time.Second {
		t.Errorf("due in %v", due.Sub(w.clock.Now()))
	}
}

func TestMeasuredUse(t *testing.T) {
	w := worldOf(t, Config{Usage: &usage.Config{
		Interval: 30 * time.Second, Weight: 5, CPUWeight: 1, MemoryWeight: 1, CPUMax: 80, MemoryMax: 80,
	}})
	w.node("n1", "8")
	w.node("n2", "8")
	percent := func(n1, n2 float64) {
		now := w.clock.Now()
		w.SetUsage(map[string]usage.Use{"n1": {CPU: n1, At: now}, "n2": {CPU: n2, At: now}})
	}
	// Requests alone would alternate between the nodes.
	percent(10, 60)
	w.Submit(w.gang("a", 3, "1"))
	w.run()
	expect(t, w.heard(), "a+3")
	for _, a := range w.on["a"] {
		if a.Node != "n1" {
			t.Errorf("a pod is on %s", a.Node)
		}
	}
	// A gang that needs both nodes waits while one of them is overused, and starts when it is not.
	percent(10, 85)
	w.Submit(w.gang("b", 10, "1"))
	w.run()
	expect(t, w.heard(), "b: NotEnoughResources")
	percent(10, 79)
	w.run()
	expect(t, w.heard(), "b+10")
	// Measurements that are too old do not count.
	percent(95, 95)
	w.Submit(w.gang("c", 1, "1"))
	w.run()
	expect(t, w.heard(), "c: Unschedulable")
	w.at("00:19:00")
	expect(t, w.heard(), "")
	w.at("00:20:00") // three minutes after the measurement, at the next look
	expect(t, w.heard(), "c+1")
}

// balanced is a configuration that moves pods from nodes above 50% to nodes below 20% of CPU.
func balanced(change func(*usage.Balance)) *usage.Config {
	none := usage.Levels{CPU: 100, Memory: 100, Pods: 100}
	b := &usage.Balance{Every: 5 * time.Minute, Low: none, High: none}
	b.Low.CPU, b.High.CPU = 20, 50
	if change != nil {
		change(b)
	}
	return &usage.Config{Interval: 30 * time.Second, Weight: 5, CPUWeight: 1, ScoresOnly: true, Balance: b}
}

// TestPodsAreMovedFromNodesThatAreUsedMuch fills node n1 of 10 CPUs, measures it at 80%, and n2 at a
// percentage.
func TestPodsAreMovedFromNodesThatAreUsedMuch(t *testing.T) {
	for sentence, tc := range map[string]struct {
		change func(*usage.Balance)
		mode   EvictionMode
		min    int // of 8 pods of 1 CPU
		n2     float64
		cpu    string // of n2
		want   string
	}{
		"until the node is at the upper level":                      {n2: 5, cpu: "10", want: "a for , a-0, a-1, a-2"},
		"no more than the other node takes without being used much": {n2: 15, cpu: "5", want: "a for , a-0"},
		"no other node is used little":                              {n2: 30, cpu: "10"},
		"pods of the minimum stay":                                  {min: 7, n2: 5, cpu: "10", want: "a for , a-0"},
		"only pods that say that they are preemptable":              {change: func(b *usage.Balance) { b.OnlyPreemptable = true }, n2: 5, cpu: "10"},
		"only pods of some queues":                                  {change: func(b *usage.Balance) { b.Queues = []string{"other"} }, n2: 5, cpu: "10"},
		"only pods with some labels":                                {change: func(b *usage.Balance) { b.Labels = map[string]string{"a": "b"} }, n2: 5, cpu: "10"},
		"nothing is moved where evictions are off":                  {mode: EvictionOff, n2: 5, cpu: "10"},
		"nothing is moved in a dry run":                             {mode: EvictionDryRun, n2: 5, cpu: "10"},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := &evictionWorld{min: map[string]int{"a": tc.min}}
			w.world = worldOf(t, Config{Evictions: Evictions{Mode: tc.mode}, Usage: balanced(tc.change)})
			w.writes = true
			w.SetEvictors(w)
			w.node("n1", "10")
			w.put(w.gang("a", 8, "1"))
			w.node("n2", tc.cpu)
			w.at("00:19:00")
			expect(t, w.left(), "") // nothing is measured yet
			now := w.clock.Now()
			w.SetUsage(map[string]usage.Use{"n1": {CPU: 80, At: now}, "n2": {CPU: tc.n2, At: now}})
			w.at("00:21:40") // five minutes after the scheduler began
			expect(t, w.left(), tc.want)
			// What was measured before the last move says nothing about the next one.
			w.gone("a-0", "a-1", "a-2")
			w.at("00:21:59")
			w.SetUsage(map[string]usage.Use{"n1": {CPU: 80, At: now}, "n2": {CPU: tc.n2, At: now}})
			w.at("00:27:00")
			expect(t, w.left(), "")
		})
	}
}
