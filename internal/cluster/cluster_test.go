package cluster

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

func testPod(name, uid, node, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Ports: []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
}

func testNode(name, cpu string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

func testClass(t interface{ Fatal(...any) }, c *Cluster, cpu string) *place.Class {
	class, err := place.NewClass(c.Dims(), testPod("", "", "", cpu))
	if err != nil {
		t.Fatal(err)
	}
	return class
}

// used returns the CPU reserved on a node, in milli-CPUs, according to a new view.
func used(c *Cluster, node string) int64 {
	v := c.NewView()
	c.Refresh(v)
	i, ok := v.Index(node)
	if !ok {
		return -1
	}
	return v.Node(i).Used.At(place.CPU)
}

func TestTheLifeOfAPod(t *testing.T) {
	name := types.NamespacedName{Namespace: "ns", Name: "p"}
	type step struct {
		do   string
		act  func(c *Cluster, class *place.Class)
		want int64
	}
	assume := func(c *Cluster, class *place.Class) { c.Assume(name, "n", "q", "", class, nil) }
	forget := func(c *Cluster, _ *place.Class) { c.Forget(name, 0) }
	confirm := func(uid string) func(*Cluster, *place.Class) {
		return func(c *Cluster, _ *place.Class) { c.Confirm(name, 0, types.UID(uid), "7") }
	}
	upsert := func(uid, node string) func(*Cluster, *place.Class) {
		return func(c *Cluster, _ *place.Class) { c.UpsertPod(testPod("p", uid, node, "1")) }
	}
	remove := func(uid string) func(*Cluster, *place.Class) {
		return func(c *Cluster, _ *place.Class) { c.DeletePod(testPod("p", uid, "n", "1")) }
	}
	end := func(uid string) func(*Cluster, *place.Class) {
		return func(c *Cluster, _ *place.Class) {
			p := testPod("p", uid, "n", "1")
			p.Status.Phase = corev1.PodFailed
			c.UpsertPod(p)
		}
	}
	expire := func(seen string) func(*Cluster, *place.Class) {
		return func(c *Cluster, _ *place.Class) {
			c.Expire(seen, func(types.NamespacedName) bool { return false })
		}
	}
	for sentence, steps := range map[string][]step{
		"created with its node": {
			{"assume", assume, 1000}, {"confirm", confirm("a"), 1000}, {"watch", upsert("a", "n"), 1000}, {"delete", remove("a"), 0},
		},
		"the watch is faster than the answer": {
			{"assume", assume, 1000}, {"watch", upsert("a", "n"), 1000}, {"delete", remove("a"), 0}, {"confirm", confirm("a"), 0},
		},
		"the write failed":                {{"assume", assume, 1000}, {"forget", forget, 0}},
		"forgotten after it was seen":     {{"assume", assume, 1000}, {"watch", upsert("a", "n"), 1000}, {"forget", forget, 1000}},
		"bound":                           {{"watch", upsert("a", ""), 0}, {"assume", assume, 1000}, {"labels", upsert("a", ""), 1000}, {"watch", upsert("a", "n"), 1000}},
		"deleted before it was bound":     {{"watch", upsert("a", ""), 0}, {"assume", assume, 1000}, {"delete", remove("a"), 0}},
		"bound elsewhere by another":      {{"watch", upsert("a", ""), 0}, {"assume", assume, 1000}, {"watch", upsert("a", "other"), 0}},
		"ended":                           {{"watch", upsert("a", "n"), 1000}, {"end", end("a"), 0}, {"delete", remove("a"), 0}},
		"gone before the watch showed it": {{"assume", assume, 1000}, {"confirm", confirm("a"), 1000}, {"early", expire("6"), 1000}, {"late", expire("8"), 0}},
		"recreated under the same name": {
			{"watch", upsert("a", "n"), 1000}, {"end", end("a"), 0}, {"assume", assume, 1000}, {"delete the old", remove("a"), 1000},
			{"confirm", confirm("b"), 1000}, {"watch", upsert("b", "n"), 1000},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			c := New(Config{})
			c.UpsertNode(testNode("n", "8"))
			class := testClass(t, c, "1")
			for _, s := range steps {
				s.act(c, class)
				if got := used(c, "n"); got != s.want {
					t.Fatalf("after %s: %d used, want %d", s.do, got, s.want)
				}
				if err := c.assertConsistent(); err != nil {
					t.Fatalf("after %s: %v", s.do, err)
				}
			}
		})
	}
}

// TestTheAnswerToAnEarlierWriteChangesNothing checks that the answer to the write of a pod does not
// change the assumption of a later pod of the same name.
func TestTheAnswerToAnEarlierWriteChangesNothing(t *testing.T) {
	name := types.NamespacedName{Namespace: "ns", Name: "p"}
	c := New(Config{})
	c.UpsertNode(testNode("n", "8"))
	class := testClass(t, c, "1")
	first := c.Assume(name, "n", "q", "", class, nil)
	c.UpsertPod(testPod("p", "a", "n", "1"))
	c.DeletePod(testPod("p", "a", "n", "1"))
	second := c.Assume(name, "n", "q", "", class, nil)
	c.Confirm(name, first, "a", "7")
	c.Expire("8", func(types.NamespacedName) bool { return false })
	c.Forget(name, first)
	if got := used(c, "n"); got != 1000 || c.pods[name].assume.version != "" {
		t.Errorf("%d used, want 1000; written as version %q, want none", got, c.pods[name].assume.version)
	}
	c.Forget(name, second)
	if got := used(c, "n"); got != 0 {
		t.Errorf("%d used, want 0", got)
	}
}

// TestAResizeCountsAsItIsCarriedOut checks that a pod that shrinks in place counts with what it has until
// the kubelet has taken it away, also though its spec does not change then.
func TestAResizeCountsAsItIsCarriedOut(t *testing.T) {
	c := New(Config{})
	c.UpsertNode(testNode("n", "8"))
	for i, step := range []struct {
		spec, actuated string
		want           int64
	}{{"6", "", 6000}, {"2", "6", 6000}, {"2", "2", 2000}, {"2", "", 2000}, {"7", "2", 7000}, {"7", "7", 7000}} {
		p := testPod("p", "a", "n", step.spec)
		if i > 0 {
			p.Spec.Containers = shared(c.pods[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}].object, p)
		}
		if step.actuated != "" {
			list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(step.actuated)}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, AllocatedResources: list,
				Resources: &corev1.ResourceRequirements{Requests: list}}}
		}
		c.UpsertPod(p)
		if got := used(c, "n"); got != step.want {
			t.Errorf("step %d %+v: %d used, want %d", i, step, got, step.want)
		}
		if err := c.assertConsistent(); err != nil {
			t.Error(err)
		}
	}
}

// shared returns the containers of p, or the equal ones of before: the informer shares them, too.
func shared(before, p *corev1.Pod) []corev1.Container {
	if reflect.DeepEqual(before.Spec.Containers, p.Spec.Containers) {
		return before.Spec.Containers
	}
	return p.Spec.Containers
}

func TestAHeartbeatChangesNothing(t *testing.T) {
	c := New(Config{})
	n := testNode("n", "8")
	c.UpsertNode(n)
	c.TakeChanges()
	<-c.Changed()
	beat := n.DeepCopy()
	beat.ResourceVersion = "2"
	beat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	c.UpsertNode(beat)
	if ch := c.TakeChanges(); !ch.Empty() {
		t.Errorf("changes: %+v", ch)
	}
	select {
	case <-c.Changed():
		t.Error("woken")
	default:
	}
}

// TestModelAgainstRecount applies random histories. It checks that the incremental figures equal a
// recount, and that a view that is refreshed now and then equals a new one.
func TestModelAgainstRecount(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := New(Config{Ours: func(*corev1.Pod) bool { return true }})
		class := testClass(r, c, "2")
		old := c.NewView()
		pick := func(what string, n int) string { return fmt.Sprint(what, rapid.IntRange(0, n).Draw(r, what)) }
		pod := func() *corev1.Pod {
			p := testPod(pick("p", 4), pick("u", 2), "", rapid.SampledFrom([]string{"1", "3"}).Draw(r, "cpu"))
			if rapid.Bool().Draw(r, "bound") {
				p.Spec.NodeName = pick("n", 3)
			}
			if rapid.IntRange(0, 3).Draw(r, "ended") == 0 {
				p.Status.Phase = corev1.PodSucceeded
			}
			if rapid.Bool().Draw(r, "of a job") {
				p.OwnerReferences = []metav1.OwnerReference{{
					APIVersion: batchv1alpha1.GroupVersion.String(), Kind: "Job", Name: pick("job", 1), Controller: ptr.To(true),
				}}
			}
			if rapid.Bool().Draw(r, "grouped") {
				p.Annotations = map[string]string{schedulingv1beta1.GroupNameAnnotation: pick("g", 1)}
			}
			return p
		}
		name := func() types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: pick("p", 4)} }
		r.Repeat(map[string]func(*rapid.T){
			"upsert pod": func(*rapid.T) { c.UpsertPod(pod()) },
			"delete pod": func(*rapid.T) { c.DeletePod(pod()) },
			"assume":     func(*rapid.T) { c.Assume(name(), pick("n", 3), pick("q", 1), pick("job/ns/job", 1), class, nil) },
			"upsert queue": func(*rapid.T) {
				q := &schedulingv1beta1.Queue{ObjectMeta: metav1.ObjectMeta{Name: pick("q", 1)}}
				if rapid.Bool().Draw(r, "shared") {
					q.Annotations = map[string]string{schedulingv1beta1.FairShareByAnnotation: schedulingv1beta1.ByNamespace}
				}
				c.UpsertQueue(q)
			},
			"delete queue": func(*rapid.T) { c.DeleteQueue(pick("q", 1)) },
			"forget":       func(*rapid.T) { c.Forget(name(), 0) },
			"confirm": func(*rapid.T) {
				c.Confirm(name(), 0, types.UID(pick("u", 2)), fmt.Sprint(rapid.IntRange(1, 9).Draw(r, "version")))
			},
			"upsert node": func(*rapid.T) {
				c.UpsertNode(testNode(pick("n", 3), rapid.SampledFrom([]string{"4", "8"}).Draw(r, "size")))
			},
			"delete node": func(*rapid.T) { c.DeleteNode(pick("n", 3)) },
			"cordon": func(*rapid.T) {
				n := testNode(pick("n", 3), "4")
				n.Spec.Unschedulable = true
				c.UpsertNode(n)
			},
			"group moves": func(*rapid.T) {
				c.UpsertPodGroup(types.NamespacedName{Namespace: "ns", Name: pick("g", 1)}, pick("q", 1))
			},
			"group gone": func(*rapid.T) { c.DeletePodGroup(types.NamespacedName{Namespace: "ns", Name: pick("g", 1)}) },
			"expire": func(*rapid.T) {
				c.Expire(fmt.Sprint(rapid.IntRange(1, 9).Draw(r, "seen")), func(types.NamespacedName) bool { return false })
			},
			"refresh": func(*rapid.T) { c.Refresh(old) },
			"claim": func(*rapid.T) {
				c.SetClaims(pick("gang", 1), []Claim{{pick("n", 3), class}, {pick("n", 3), class}}[:rapid.IntRange(0, 2).Draw(r, "claims")])
			},
			"": func(r *rapid.T) {
				if err := c.assertConsistent(); err != nil {
					r.Fatal(err)
				}
			},
		})
		c.Refresh(old)
		fresh := c.NewView()
		c.Refresh(fresh)
		if old.Len() != fresh.Len() {
			r.Fatalf("the old view has %d nodes, a new one %d", old.Len(), fresh.Len())
		}
		for _, n := range fresh.All() {
			i, ok := old.Index(n.Name)
			if !ok || !sameAmounts(old.Node(i).Used, n.Used) || !sameAmounts(old.Node(i).Allocatable, n.Allocatable) ||
				len(old.Node(i).Ports) != len(n.Ports) {
				r.Fatalf("node %s: old view %+v, new %+v", n.Name, old.Node(i), n)
			}
		}
	})
}

// TestAPanicInTheModelEndsTheProcess checks that a panic in the model ends the process: all objects
// share the model, and a panic may leave it half-changed.
func TestAPanicInTheModelEndsTheProcess(t *testing.T) {
	g, err := panics.New(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	model := New(Config{Dims: place.NewDims()})
	defer func() {
		if v := recover(); !strings.Contains(fmt.Sprint(v), "so the process ends") {
			t.Errorf("recovered %v", v)
		}
	}()
	p := g.Try("pods", types.NamespacedName{Name: "a"}, func() { model.UpsertPod(nil) })
	t.Errorf("it goes on after %v", p)
}
