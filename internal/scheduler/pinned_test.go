package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// eight is a machine with 8 CPUs in two L3 domains, 0-3 and 4-7.
var eight = machines.Machine{Name: "eight", Sockets: 1, NUMAPerSocket: 1, CoresPerSocket: 8, Threads: 1, CoresPerL3: 4, L3Bytes: 1 << 20, MemoryBytesPerNUMA: 64 << 30}

// topology returns the NodeTopology that an agent reports for a node.
func topology(node string, m machines.Machine) *topologyv1alpha1.NodeTopology {
	return &topologyv1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: m.MustTopology().Encode()}
}

// asks returns a template of one container with that many CPUs, and annotations as KEY=VALUE.
func asks(cpus string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus), corev1.ResourceMemory: resource.MustParse("1Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus)},
		},
	}}}}
	p.Annotations = map[string]string{}
	for _, a := range annotations {
		key, value, _ := strings.Cut(a, "=")
		p.Annotations[key] = value
	}
	return p
}

const (
	own = topologyv1alpha1.RequestAnnotation + "="
	ack = topologyv1alpha1.ACKSchedulerAnnotation + "=true"
)

// gangOf returns a gang of count pods of a template, all of them required.
func (w *world) gangOf(key string, count int, template *corev1.Pod) *Gang {
	d := Demand{Template: template, Min: count}
	for i := range count {
		d.Units = append(d.Units, types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("%s-%d", key, i)})
	}
	return &Gang{Key: key, Queue: "default", Created: time.Unix(1, 0), MinMember: count, Demands: []Demand{d}, Owner: w}
}

// given returns the placement of a gang's pods as "node:cpus", sorted.
func (w *world) given(key string) string {
	var out []string
	for _, a := range w.on[key] {
		r, err := request.ParseResult(a.Annotations[topologyv1alpha1.ResultAnnotation])
		if err != nil {
			w.t.Fatalf("%s on %s: %v in %v", key, a.Node, err, a.Annotations)
		}
		out = append(out, a.Node+":"+r.Containers["main"].CPUs.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// reasons is an owner that keeps the last reason reported for each gang.
type reasons map[string]Reason

func (r reasons) Commit(*Gang, []Assignment)  {}
func (r reasons) Waiting(g *Gang, why Reason) { r[g.Key] = why }

func (w *world) wantGiven(key, want string) {
	w.t.Helper()
	if got := w.given(key); got != want {
		w.t.Errorf("%s was given %s, want %s", key, got, want)
	}
}

func TestPinnedPodsGetTheirCPUsWithTheirNode(t *testing.T) {
	w := newWorld(t)
	w.writes = true
	w.node("a", "8")
	w.node("plain", "64") // no NodeTopology: takes no pinned pod
	w.cluster.UpsertNodeTopology(topology("a", eight))

	w.Submit(w.gangOf("one", 1, asks("3", own+"true")))
	w.Submit(w.gangOf("two", 2, asks("2", own+"{span: single-l3}")))
	w.run()
	w.wantGiven("one", "a:0-2")
	w.wantGiven("two", "a:4-5 a:6-7")

	w.Submit(w.gangOf("three", 1, asks("2", own+"true")))
	w.run()
	if w.given("three") != "" {
		t.Errorf("three was given %s, and only CPU 3 was idle", w.given("three"))
	}
	w.heard()
	w.finish("two")
	w.run()
	w.wantGiven("three", "a:4-5")
}

func TestGangsOfPinnedPodsAreAllOrNothing(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"a", "b"} {
		w.node(n, "8")
		w.cluster.UpsertNodeTopology(topology(n, eight))
	}
	alone := asks("2", own+"{isolation: l3}") // a node takes two, though it has CPUs for four
	w.Submit(w.gangOf("five", 5, alone))
	w.run()
	if got := w.heard(); got != "five: NotEnoughResources" {
		t.Fatalf("heard %q", got)
	}
	w.Submit(w.gangOf("four", 4, alone))
	w.run()
	w.wantGiven("four", "a:0-1 a:4-5 b:0-1 b:4-5")
}

func TestWhyPinnedPodsWait(t *testing.T) {
	for name, c := range map[string]struct {
		template *corev1.Pod
		topology *topologyv1alpha1.NodeTopology
		code     string
		message  string
	}{
		"no NodeTopology": {asks("2", own+"true"), nil, NotEnoughResources, "1 pods need nodes with a NodeTopology"},
		"a NodeTopology that is wrong": {asks("2", own+"true"),
			&topologyv1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, NotEnoughResources, "1 pods need nodes with a NodeTopology"},
		"never": {asks("6", own+"{span: single-l3}"), topology("a", eight), Unschedulable,
			"no node could ever give a pod 6 free CPUs within one L3 domain"},
		"half a CPU": {asks("1500m", own+"true"), topology("a", eight), Unschedulable,
			"pod template: cpu.lockstep.dev/request: spec.containers[main].resources.limits.cpu: 1500m is not a whole number of CPUs"},
		"an unknown policy": {asks("1", ack, "cpu-policy=bursty"), topology("a", eight), Unschedulable,
			`pod template: cpu-policy: "bursty" is unknown; it is "static-burst" or absent`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a", "64")
			if c.topology != nil {
				w.cluster.UpsertNodeTopology(c.topology)
			}
			r := reasons{}
			g := w.gangOf("g", 1, c.template)
			g.Owner = r
			w.Submit(g)
			w.run()
			if got := r["g"]; got.Code != c.code || got.Message != c.message {
				t.Errorf("waits because of %s: %s, want %s: %s", got.Code, got.Message, c.code, c.message)
			}
		})
	}
}

func TestTopologyThatArrivesLateLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.node("a", "8")
	w.cluster.UpsertNodeTopology(topology("a", eight))
	w.Submit(w.gangOf("first", 1, asks("4", own+"true")))
	w.run()

	// A manager that starts later sees the pod before everything else, the node next, and the
	// NodeTopology last.
	later := newWorld(t)
	later.cluster.UpsertPod(bound(w.started["first"], w.on["first"][0]))
	later.node("a", "8")
	later.Submit(later.gangOf("second", 1, asks("4", own+"true")))
	later.run()
	if got := later.heard(); got != "second: NotEnoughResources" {
		t.Fatalf("heard %q", got)
	}
	later.cluster.UpsertNodeTopology(topology("a", eight))
	later.run()
	w.wantGiven("first", "a:0-3")
	later.wantGiven("second", "a:4-7")
}

func TestPodsHoldTheirCPUsUntilTheyAreGone(t *testing.T) {
	w := newWorld(t)
	w.node("a", "8")
	w.cluster.UpsertNodeTopology(topology("a", eight))
	w.Submit(w.gangOf("old", 1, asks("4", own+"{bind: l3}")))
	w.Submit(w.gangOf("other", 1, asks("4", own+"{bind: l3}")))
	w.run()
	p := bound(w.started["old"], w.on["old"][0])
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0)}
	w.cluster.UpsertPod(p)
	w.Submit(w.gangOf("new", 1, asks("4", own+"{bind: l3}")))
	w.run()
	if got := w.given("new"); got != "" {
		t.Fatalf("new was given %s, which a pod that is being deleted still has", got)
	}
	w.cluster.DeletePod(p)
	w.run()
	if got := w.given("new"); got != w.given("old") {
		t.Errorf("new was given %q, want %s", got, w.given("old"))
	}
}

func TestReservedAndKubeletPinnedCPUsAreNotGivenOut(t *testing.T) {
	w := newWorld(t)
	w.node("a", "8")
	object := topology("a", eight)
	object.Status.Reserved = "0-1"
	object.Status.KubeletPins = []topologyv1alpha1.KubeletPin{{PodUID: "u", Container: "c", CPUs: "2,4"}}
	w.cluster.UpsertNodeTopology(object)
	w.Submit(w.gangOf("g", 4, asks("1", own+"true")))
	w.run()
	w.wantGiven("g", "a:3 a:5 a:6 a:7")
	w.Submit(w.gangOf("more", 1, asks("1", own+"true")))
	w.run()
	if got := w.given("more"); got != "" {
		t.Fatalf("more was given %s", got)
	}
	object = object.DeepCopy()
	object.Status.KubeletPins = nil
	w.cluster.UpsertNodeTopology(object)
	w.run()
	w.wantGiven("more", "a:2")
}

func TestPreferredNodesComeBeforeBetterCPUs(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"a", "b"} {
		w.node(n, "8")
		w.cluster.UpsertNodeTopology(topology(n, eight))
	}
	w.Submit(w.gangOf("first", 1, asks("1", own+"true")))
	w.run()
	first, other := w.on["first"][0].Node, "a"
	if first == "a" {
		other = "b"
	}
	// Without the preference, the fullest node would be taken.
	p := asks("1", own+"true")
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 1, Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{other}}}},
	}}}}
	w.Submit(w.gangOf("preferring", 1, p))
	w.Submit(w.gangOf("plain", 1, asks("1", own+"true")))
	w.run()
	if got := w.on["preferring"][0].Node; got != other {
		t.Errorf("the pod that prefers %s is on %s", other, got)
	}
	w.wantGiven("plain", first+":1")
}

func TestExclusiveCPUsCountAsRequested(t *testing.T) {
	w := newWorld(t)
	w.writes = true
	w.node("a", "8")
	w.cluster.UpsertNodeTopology(topology("a", eight))
	p := asks("2", own+"{isolation: l3}") // requests 2 CPUs and withholds 4 from others
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
	w.Submit(w.gangOf("alone", 1, p))
	w.run()
	w.wantGiven("alone", "a:0-1")
	w.Submit(w.gangOf("plain", 5, template("1")))
	w.run()
	w.Submit(w.gangOf("plain4", 4, template("1")))
	w.run()
	if got := w.heard(); got != "alone+1, plain4+4, plain: NotEnoughResources" {
		t.Errorf("heard %q: 4 of 8 CPUs are left for who is not pinned", got)
	}
}

// TestPinnedAnswersInEachLanguage checks that the annotations written on a pod are those that the
// tools of its language expect.
func TestPinnedAnswersInEachLanguage(t *testing.T) {
	w := newWorld(t)
	w.node("a", "8")
	w.cluster.UpsertNodeTopology(topology("a", eight))
	koordinator := asks("2")
	koordinator.Labels = map[string]string{topologyv1alpha1.KoordinatorQoSLabel: "LSR", topologyv1alpha1.KoordinatorPriorityClassLabel: "koord-prod"}
	w.Submit(w.gangOf("1-ack", 1, asks("2", ack, "cpu-policy=static-burst")))
	w.Submit(w.gangOf("2-koordinator", 1, koordinator))
	w.Submit(w.gangOf("3-plain", 1, template("1")))
	w.run()
	if got, want := w.on["1-ack"][0].Annotations[topologyv1alpha1.ACKResultAnnotation], `{"main":{"0":{"elems":{"0":{},"1":{},"2":{},"3":{}}}}}`; got != want { // widened
		t.Errorf("ACK's answer is %s, want %s", got, want)
	}
	if r, err := request.ParseResult(w.on["1-ack"][0].Annotations[topologyv1alpha1.ResultAnnotation]); err != nil || r.Containers["main"].CPUs.String() != "0-1" {
		t.Errorf("the pod's own CPUs are %v, %v", r, err)
	}
	if got, want := w.on["2-koordinator"][0].Annotations[topologyv1alpha1.KoordinatorResultAnnotation], `{"cpuset":"2-3"}`; got != want {
		t.Errorf("Koordinator's answer is %s, want %s", got, want)
	}
	if got := w.on["3-plain"][0].Annotations; got != nil {
		t.Errorf("a pod that asks for no CPUs has %v", got)
	}
}

// labelled adds a node of the machine smt with labels KEY=VALUE of node.koordinator.sh.
func (w *world) labelled(name string, labels ...string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node": name}}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")}}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		n.Labels["node.koordinator.sh/"+key] = value
	}
	w.cluster.UpsertNode(n)
	w.cluster.UpsertNodeTopology(topology(name, smt))
}

// smt has two NUMA nodes of 4 cores with two threads: CPUs n and n+8 are one core.
var smt = machines.Machine{Name: "smt", Sockets: 1, NUMAPerSocket: 2, CoresPerSocket: 8, Threads: 2, CoresPerL3: 4, L3Bytes: 1 << 20, MemoryBytesPerNUMA: 64 << 30}

// lsr returns a pod that asks in Koordinator's form, for a node.
func lsr(cpus, node string, annotations ...string) *corev1.Pod {
	p := asks(cpus, annotations...)
	p.Labels = map[string]string{topologyv1alpha1.KoordinatorQoSLabel: "LSR", topologyv1alpha1.KoordinatorPriorityClassLabel: "koord-prod"}
	if node != "" {
		p.Spec.NodeSelector = map[string]string{"node": node}
	}
	return p
}

func TestNodesOfKoordinatorGiveCPUsByTheirLabels(t *testing.T) {
	const spec, numa = topologyv1alpha1.KoordinatorSpecAnnotation, topologyv1alpha1.KoordinatorNUMASpecAnnotation
	w := newWorld(t)
	w.writes = true
	w.labelled("any")
	w.labelled("full", "cpu-bind-policy=FullPCPUsOnly")
	w.labelled("spread", "cpu-bind-policy=SpreadByPCPUs")
	w.labelled("single", "numa-topology-policy=SingleNUMANode")
	w.labelled("least", "numa-allocate-strategy=LeastAllocated")
	w.labelled("most", "numa-allocate-strategy=MostAllocated")
	for _, c := range []struct {
		name, want string
		pod        *corev1.Pod
	}{
		{"full-2", "full:0,8", lsr("2", "full", spec+`={"preferredCPUBindPolicy":"SpreadByPCPUs"}`)},
		{"full-odd", "", lsr("3", "full")},
		{"full-not", "", lsr("2", "full", spec+`={"requiredCPUBindPolicy":"SpreadByPCPUs"}`)},
		{"spread-2", "spread:0-1", lsr("2", "spread")},
		{"spread-not", "", lsr("2", "spread", spec+`={"requiredCPUBindPolicy":"FullPCPUs"}`)},
		{"single-large", "", lsr("10", "single")},
		{"single-not", "", lsr("2", "single", numa+`={"numaTopologyPolicy":"Restricted"}`)},
		{"any-large", "any:0-4,8-12", lsr("10", "any")},
		// The first pod leaves the first NUMA node with fewer idle CPUs.
		{"least-1", "least:0,8", lsr("2", "least")},
		{"least-2", "least:4,12", lsr("2", "least")},
		{"most-1", "most:0,8", lsr("2", "most")},
		{"most-2", "most:1,9", lsr("2", "most")},
		// All nodes give whole cores at the same cost; those without a policy come first.
		{"wherever", "most:2,10", lsr("2", "", spec+`={"requiredCPUBindPolicy":"FullPCPUs"}`)},
		// The labels are Koordinator's, and other pods do not follow them.
		{"own", "full:1-2,9", func() *corev1.Pod {
			p := asks("3", own+"{bind: threads}")
			p.Spec.NodeSelector = map[string]string{"node": "full"}
			return p
		}()},
	} {
		w.Submit(w.gangOf(c.name, 1, c.pod))
		w.run()
		if got := w.given(c.name); got != c.want {
			t.Errorf("%s was given %q, want %q", c.name, got, c.want)
		}
		if err := w.Scheduler.pinner.AssertConsistent(); err != nil {
			t.Error(err)
		}
	}

	why := reasons{}
	for name, pod := range map[string]*corev1.Pod{"policy": lsr("2", "single", numa+`={"numaTopologyPolicy":"Restricted"}`), "odd": lsr("3", "full")} {
		g := w.gangOf(name, 1, pod)
		g.Owner = why
		w.Submit(g)
	}
	w.run()
	if got := why["policy"].Detail; !strings.Contains(got, "node(s) had another numa-topology-policy than the pod") {
		t.Errorf("the reason is %q", got)
	}
	if got := why["odd"].Message; !strings.Contains(got, "3 free CPUs in entirely free cores") {
		t.Errorf("the reason is %q", got)
	}

	// A label that changes takes effect at once.
	w.labelled("single", "numa-topology-policy=BestEffort")
	w.run()
	w.wantGiven("single-large", "single:0-4,8-12")
}

// TestSharedPodsArePackedByWhatTheyRequest is the case of 60 pods that request 1 CPU and may use 4: the
// rest of the node stays free for pods with CPUs of their own.
func TestSharedPodsArePackedByWhatTheyRequest(t *testing.T) {
	w := newWorld(t)
	w.writes = true
	w.node("a", "256")
	w.node("b", "256")
	for _, n := range []string{"a", "b"} {
		w.cluster.UpsertNodeTopology(topology(n, machines.AMD256NPS4))
	}
	pod := asks("4", ack)
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
	w.Submit(w.gangOf("shared", 60, pod))
	w.run()
	topo := machines.AMD256NPS4.MustTopology()
	used := map[string]bool{}
	for _, a := range w.on["shared"] {
		r, err := request.ParseResult(a.Annotations[topologyv1alpha1.ResultAnnotation])
		if err != nil {
			t.Fatal(err)
		}
		for id := range r.Containers["main"].CPUs.All() {
			used[fmt.Sprint(a.Node, topo.CPUs[id].L3)] = true
		}
	}
	if len(w.on["shared"]) != 60 || len(used) != 8 {
		t.Errorf("%d pods use %d L3 domains, want 60 pods on 8", len(w.on["shared"]), len(used))
	}
	if err := w.Scheduler.pinner.AssertConsistent(); err != nil {
		t.Error(err)
	}
	whole := asks("8", own+"{span: single-l3, bind: l3}")
	w.Submit(w.gangOf("own", 2*32-8, whole))
	w.run()
	if got := len(w.on["own"]); got != 2*32-8 {
		t.Errorf("%d pods of a whole L3 domain were placed: %v", got, w.heard())
	}
	w.Submit(w.gangOf("more", 1, whole))
	w.run()
	if w.given("more") != "" {
		t.Errorf("a pod more was given %s", w.given("more"))
	}
	w.finish("shared")
	w.run()
	if w.given("more") == "" {
		t.Error("a domain that its shared pods have left is not given out")
	}
}

// TestAResizeIsSeen checks that the room for shared pods follows what the pods request now.
func TestAResizeIsSeen(t *testing.T) {
	w := newWorld(t)
	w.writes = true
	w.node("a", "8")
	w.cluster.UpsertNodeTopology(topology("a", eight))
	pod := func(requests string) *corev1.Pod {
		p := asks("2", ack)
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(requests)
		return p
	}
	w.Submit(w.gangOf("1", 1, pod("1")))
	w.run()
	w.Submit(w.gangOf("2", 1, pod("1")))
	w.run()
	w.wantGiven("1", "a:0-1")
	w.wantGiven("2", "a:2-3")
	resized := bound(w.started["1"], w.on["1"][0]).DeepCopy()
	resized.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
	w.cluster.UpsertPod(resized)
	w.Submit(w.gangOf("3", 1, pod("1")))
	w.run()
	w.wantGiven("3", "a:4-5")
}

// TestNodesWhoseKubeletPins checks that a pod which the kubelet would pin as well does not go where the
// kubelet's pins stand.
func TestNodesWhoseKubeletPins(t *testing.T) {
	w := newWorld(t)
	w.writes = true
	w.node("a", "8")
	kubelet := topology("a", eight)
	kubelet.Status.Kubelet = &topologyv1alpha1.KubeletStatus{CPUManagerPolicy: "static", Pins: topologyv1alpha1.PinsRespected}
	w.cluster.UpsertNodeTopology(kubelet)
	guaranteed := asks("2", own+"true")
	guaranteed.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("1Mi")
	burstable := asks("2", own+"true")
	why := reasons{}
	g := w.gangOf("guaranteed", 1, guaranteed)
	g.Owner = why
	w.Submit(g)
	w.Submit(w.gangOf("burstable", 1, burstable))
	w.run()
	w.wantGiven("burstable", "a:0-1")
	if got := why["guaranteed"].Detail; !strings.Contains(got, "node(s) had a kubelet that pins such pods itself") {
		t.Errorf("the reason is %q", got)
	}
	kubelet = kubelet.DeepCopy()
	kubelet.Status.Kubelet.Pins = topologyv1alpha1.PinsTakenOver
	w.cluster.UpsertNodeTopology(kubelet)
	w.Submit(w.gangOf("guaranteed", 1, guaranteed))
	w.run()
	w.wantGiven("guaranteed", "a:2-3")
}

// moved returns the move of a pod to other CPUs, and the pod's object after the move is written.
func moved(p *corev1.Pod, number int64, cpus cpuset.Set) (pin.Move, *corev1.Pod) {
	before := p.Annotations[topologyv1alpha1.ResultAnnotation]
	result, err := request.ParseResult(before)
	if err != nil {
		panic(err)
	}
	c := result.Containers["main"]
	from := c.CPUs.Minus(cpus)
	c.CPUs, c.From = cpus, &from
	result.Containers, result.Move = map[string]request.ContainerResult{"main": c}, number
	data, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	after := p.DeepCopy()
	after.Annotations[topologyv1alpha1.ResultAnnotation] = string(data)
	return pin.Move{Pod: informer.KeyOf(p), UID: p.UID, Before: before, After: &cluster.CPUs{Annotation: string(data), Result: result}}, after
}

// move requests moves, and returns the errors reported.
func (w *world) move(node string, moves ...pin.Move) (errs []error) {
	w.t.Helper()
	w.Scheduler.Move(node, moves, func(said []error) { errs = said })
	w.run()
	if len(errs) != len(moves) {
		w.t.Fatalf("%d answers to %d moves", len(errs), len(moves))
	}
	return errs
}

// withAgent returns a NodeTopology whose agent has completed the given number of moves.
func withAgent(node string, moved int64) *topologyv1alpha1.NodeTopology {
	t := topology(node, eight)
	t.Status.AgentVersion, t.Status.Moved = "test", moved
	return t
}

func TestPodsThatAreMovedHoldBoth(t *testing.T) {
	w := newWorld(t)
	w.writes = true
	w.node("a", "8")
	w.cluster.UpsertNodeTopology(withAgent("a", 0))
	w.Submit(w.gangOf("p", 1, asks("2", own+"true")))
	w.Submit(w.gangOf("q", 1, asks("1", own+"true")))
	w.run()
	w.wantGiven("p", "a:0-1")
	w.wantGiven("q", "a:2")
	p := bound(w.started["p"], w.on["p"][0])
	taken, _ := moved(p, 1, cpuset.MustParse("2-3"))
	if errs := w.move("a", taken); errs[0] == nil {
		t.Error("it was given a CPU of another")
	}
	m, after := moved(p, 1, cpuset.MustParse("4-5"))
	if errs := w.move("a", m); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if errs := w.move("a", m); errs[0] == nil {
		t.Error("the same move is made twice")
	}
	idle := func(want string) {
		t.Helper()
		w.cluster.Refresh(w.view)
		if err := w.pinner.AssertConsistent(); err != nil {
			t.Error(err)
		}
		for cpus, fits := range map[string]bool{"3": strings.Contains(want, "3"), "0-1": strings.Contains(want, "0-1"), "4-5": strings.Contains(want, "4-5")} {
			q := bound(w.started["q"], w.on["q"][0])
			probe, _ := moved(q, 9, cpuset.MustParse(cpus))
			err := w.move("a", probe)[0]
			if fits != (err == nil) {
				t.Errorf("idle should be %s; a move to %s: %v", want, cpus, err)
			}
			w.cluster.ForgetMoved(probe.Pod, probe.After)
		}
	}
	idle("3")
	// The write is seen: the pod still holds both sets. A refresh from the API alone gives the same
	// result.
	w.cluster.UpsertPod(after)
	idle("3")
	// The agent has completed the move.
	w.cluster.UpsertNodeTopology(withAgent("a", 1))
	idle("3 0-1")
	// Another write is refused: the assumption is taken back.
	back, _ := moved(after, 2, cpuset.MustParse("0-1"))
	if errs := w.move("a", back); errs[0] != nil {
		t.Fatal(errs[0])
	}
	idle("3")
	w.cluster.ForgetMoved(back.Pod, back.After)
	idle("3 0-1")
	// A completed move cannot be taken back: other pods may have the CPUs by now.
	taken, _ = moved(after, 2, cpuset.MustParse("0-1"))
	taken.Back = true
	if errs := w.move("a", taken); errs[0] == nil {
		t.Error("a complete move is taken back")
	}
	// An incomplete move can be taken back, even while the agent is gone.
	m, after = moved(after, 2, cpuset.MustParse("6-7"))
	if errs := w.move("a", m); errs[0] != nil {
		t.Fatal(errs[0])
	}
	w.cluster.UpsertPod(after)
	gone := withAgent("a", 1)
	gone.Status.Conditions = append(gone.Status.Conditions, metav1.Condition{Type: topologyv1alpha1.AgentAlive, Status: metav1.ConditionFalse})
	w.cluster.UpsertNodeTopology(gone)
	forward, _ := moved(after, 3, cpuset.MustParse("4-5"))
	if errs := w.move("a", forward); errs[0] == nil {
		t.Error("a pod is moved while the agent is gone")
	}
	forward.Back = true
	if errs := w.move("a", forward); errs[0] != nil {
		t.Error(errs[0])
	}
}

func TestNodesWhoseAgentIsGoneTakeNoPinnedPods(t *testing.T) {
	w := newWorld(t)
	w.node("a", "8")
	gone := withAgent("a", 0)
	gone.Status.Conditions = []metav1.Condition{{Type: topologyv1alpha1.NodeReady, Status: metav1.ConditionTrue}, {Type: topologyv1alpha1.AgentAlive, Status: metav1.ConditionFalse}}
	released := withAgent("a", 0)
	released.Status.Conditions = []metav1.Condition{{Type: topologyv1alpha1.NodeReady, Status: metav1.ConditionFalse, Reason: "Released"}}
	r := reasons{}
	g := w.gangOf("g", 1, asks("2", own+"true"))
	g.Owner = r
	for _, object := range []*topologyv1alpha1.NodeTopology{gone, released} {
		w.cluster.UpsertNodeTopology(object)
		w.Submit(g)
		w.run()
		if got := r["g"].Message; got != "1 pods need nodes with an agent at work" {
			t.Errorf("waits because %q", got)
		}
	}
	g.Owner = w
	w.Submit(g)
	observing := released.DeepCopy()
	observing.Status.Conditions[0].Reason = topologyv1alpha1.ReasonObserving
	w.cluster.UpsertNodeTopology(observing)
	w.run()
	w.wantGiven("g", "a:0-1")
}

// TestPinnedByChance drives a model through random arrivals, ends, deletions, lost writes, changed
// machines and restarts of the scheduler. No two pods ever hold the same exclusive CPU, and the
// state that the scheduler keeps up to date equals the state that a new scheduler computes.
func TestPinnedByChance(t *testing.T) {
	kinds := []*corev1.Pod{asks("1", own+"true"), asks("3", own+"true"), asks("2", own+"{isolation: core, span: single-numa}"),
		asks("4", ack), asks("4", ack, "cpu-policy=static-burst"), template("1")}
	shapes := []machines.Machine{machines.Intel104, machines.AMD256NPS4, eight}
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t)
		pods := map[string]*corev1.Pod{} // the pods that exist
		agents := map[string]*topologyv1alpha1.NodeTopology{}
		names := []string{"a", "b", "c"}
		serial := 0
		take := func(key string) {
			for _, a := range w.on[key] {
				p := bound(w.started[key], a)
				p.CreationTimestamp = metav1.Unix(int64(serial), 0)
				if rapid.IntRange(0, 5).Draw(r, "lost") == 0 {
					w.cluster.Forget(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, 0)
					continue
				}
				pods[p.Name] = p
				w.cluster.UpsertPod(p)
			}
			delete(w.on, key)
		}
		any := func(m map[string]*corev1.Pod) *corev1.Pod {
			if len(m) == 0 {
				r.Skip("nothing there")
			}
			return m[rapid.SampledFrom(slices.Sorted(maps.Keys(m))).Draw(r, "which")]
		}
		r.Repeat(map[string]func(*rapid.T){
			"submit": func(r *rapid.T) {
				serial++
				key := fmt.Sprintf("g%03d", serial)
				w.Submit(w.gangOf(key, rapid.IntRange(1, 4).Draw(r, "count"), rapid.SampledFrom(kinds).Draw(r, "kind")))
				w.run()
				for _, key := range slices.Sorted(maps.Keys(w.on)) {
					take(key)
				}
			},
			"node": func(r *rapid.T) { w.node(rapid.SampledFrom(names).Draw(r, "node"), "64") },
			"node gone": func(r *rapid.T) {
				// The node's pods go with it, as the control plane would have it.
				name := rapid.SampledFrom(names).Draw(r, "node")
				w.cluster.DeleteNode(name)
				for _, p := range pods {
					if p.Spec.NodeName == name {
						w.cluster.DeletePod(p)
						delete(pods, p.Name)
					}
				}
			},
			"machine": func(r *rapid.T) {
				// The machine changes while nothing runs on it.
				name := rapid.SampledFrom(names).Draw(r, "node")
				for _, p := range pods {
					if p.Spec.NodeName == name && p.Annotations[topologyv1alpha1.ResultAnnotation] != "" {
						return
					}
				}
				t := topology(name, rapid.SampledFrom(shapes).Draw(r, "machine"))
				t.Status.AgentVersion = "test"
				agents[name] = t
				w.cluster.UpsertNodeTopology(t)
			},
			"machine forgotten": func(r *rapid.T) {
				name := rapid.SampledFrom(names).Draw(r, "node")
				delete(agents, name)
				w.cluster.DeleteNodeTopology(name)
			},
			"end": func(*rapid.T) {
				p := any(pods).DeepCopy()
				p.Status.Phase = corev1.PodSucceeded
				delete(pods, p.Name)
				w.cluster.UpsertPod(p)
			},
			"delete": func(*rapid.T) {
				p := any(pods)
				delete(pods, p.Name)
				w.cluster.DeletePod(p)
			},
			"move": func(r *rapid.T) {
				p := any(pods)
				result, err := request.ParseResult(p.Annotations[topologyv1alpha1.ResultAnnotation])
				idle, known := w.pinner.Idle(p.Spec.NodeName)
				if err != nil || !known || result.Containers["main"].Share != 1 || result.Containers["main"].Held != nil {
					r.Skip("it cannot be moved")
				}
				want := result.Containers["main"].CPUs.Len()
				if idle.Len() < want {
					r.Skip("no room")
				}
				serial++
				m, after := moved(p, int64(serial), cpuset.Of(idle.IDs()[:want]...))
				if err := w.move(p.Spec.NodeName, m)[0]; err != nil {
					r.Skip(err) // the node has changed
				}
				if rapid.Bool().Draw(r, "refused") {
					w.cluster.ForgetMoved(m.Pod, m.After)
					return
				}
				pods[p.Name] = after
				w.cluster.UpsertPod(after)
			},
			"moved": func(r *rapid.T) {
				name := rapid.SampledFrom(names).Draw(r, "node")
				if t := agents[name]; t != nil {
					t = t.DeepCopy()
					t.Status.Moved = int64(serial)
					agents[name] = t
					w.cluster.UpsertNodeTopology(t)
				}
			},
			"": func(r *rapid.T) {
				w.cluster.Refresh(w.view)
				if err := w.pinner.AssertConsistent(); err != nil {
					r.Fatal(err)
				}
				if err := w.placer.AssertConsistent(); err != nil {
					r.Fatal(err)
				}
				taken := map[string]cpuset.Set{}
				for _, p := range pods {
					value := p.Annotations[topologyv1alpha1.ResultAnnotation]
					if value == "" {
						continue
					}
					result, err := request.ParseResult(value)
					if err != nil {
						r.Fatal(err)
					}
					mine := result.Exclusive()
					// The CPUs that the pod is moved away from stay its own until the agent reports
					// the move.
					if t := agents[p.Spec.NodeName]; t != nil && result.Moving(t.Status.Moved) {
						mine = mine.Union(*result.Containers["main"].From)
					}
					if both := mine.Intersect(taken[p.Spec.NodeName]); !both.IsEmpty() {
						r.Fatalf("CPUs %s of node %s are given out twice, the second time to %s", both, p.Spec.NodeName, p.Name)
					}
					taken[p.Spec.NodeName] = taken[p.Spec.NodeName].Union(mine)
				}
			},
		})
	})
}
