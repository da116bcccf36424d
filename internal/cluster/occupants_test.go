package cluster

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

func ours(*corev1.Pod) bool { return true }

func TestTheLowestPriorityOfAQueue(t *testing.T) {
	c := New(Config{Ours: ours})
	c.UpsertNode(testNode("n", "8"))
	c.UpsertPriorityClass(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 7})
	lowest := func(want int32, found bool) {
		t.Helper()
		if got, ok := c.LowestPriority(schedulingv1beta1.DefaultQueue); ok != found || got != want {
			t.Errorf("got %d, %v, want %d, %v", got, ok, want, found)
		}
		if err := c.assertConsistent(); err != nil {
			t.Error(err)
		}
	}
	lowest(0, false)
	// The class counts until admission has set the priority.
	template := testPod("t", "", "", "1")
	template.Spec.PriorityClassName = "high"
	class := testClass(t, c, "1")
	class.Template = template
	c.Assume(types.NamespacedName{Namespace: "ns", Name: "a"}, "n", schedulingv1beta1.DefaultQueue, "gang", class, nil)
	lowest(7, true)
	c.TakeChanges()
	a := testPod("a", "a", "n", "1")
	a.Spec.Priority = ptr.To[int32](9)
	c.UpsertPod(a)
	lowest(9, true)
	if ch := c.TakeChanges(); len(ch.Nodes) > 0 || ch.Queues {
		t.Errorf("a pod's priority frees capacity: %+v", ch)
	}
	b := testPod("b", "b", "n", "1")
	b.Spec.Priority = ptr.To[int32](-3)
	c.UpsertPod(b)
	lowest(-3, true)
	c.DeletePod(b)
	lowest(9, true)
}

func TestOccupants(t *testing.T) {
	c := New(Config{Ours: func(p *corev1.Pod) bool { return p.Name != "other" }})
	c.UpsertNode(testNode("n", "8"))
	c.UpsertPod(testPod("a", "a", "n", "1"))
	c.UpsertPod(testPod("waits", "w", "", "1"))
	c.UpsertPod(testPod("other", "o", "n", "1")) // of another scheduler
	c.Assume(types.NamespacedName{Namespace: "ns", Name: "b"}, "n", "q", "gang", testClass(t, c, "2"), nil)
	view := c.NewView()
	var got []string
	var all Occupants
	if changed := c.FollowOccupants(&all, view); !slices.Equal(changed, []string{"n"}) {
		t.Errorf("changed: %v", changed)
	}
	for _, o := range all.On["n"] {
		got = append(got, o.Name.Name+" "+o.Queue+" "+o.Gang)
		if (o.Object == nil) != (o.Name.Name == "b") || o.Node != "n" {
			t.Errorf("%+v", o)
		}
	}
	slices.Sort(got)
	if want := []string{"a default ", "b q gang"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if i, ok := view.Index("n"); !ok || view.Node(i).Used[0] != 4000 {
		t.Error("the view is not refreshed")
	}
}

func TestClaimsShowAsUseOfTheirNodes(t *testing.T) {
	c := New(Config{Ours: ours})
	c.UpsertNode(testNode("n", "8"))
	class := testClass(t, c, "2")
	view := c.NewView()
	used := func(want int64) {
		t.Helper()
		c.Refresh(view)
		i, _ := view.Index("n")
		if got := view.Node(i).Used.At(0); got != want {
			t.Errorf("%d used, want %d", got, want)
		}
	}
	c.TakeChanges()
	c.SetClaims("gang", []Claim{{"n", class}, {"n", class}})
	used(4000)
	c.SetClaims("gang", []Claim{{"n", class}})
	used(2000)
	c.UpsertPod(testPod("a", "a", "n", "1"))
	used(3000)
	c.SetClaims("gang", nil)
	used(1000)
	if ch := c.TakeChanges(); len(ch.Nodes) > 0 {
		t.Errorf("claims have announced %v", ch.Nodes)
	}
	c.Freed([]Claim{{"n", class}})
	if ch := c.TakeChanges(); len(ch.Nodes) != 1 || !ch.Queues {
		t.Errorf("announced: %+v", ch)
	}
}

func TestClassesThatNeverPreempt(t *testing.T) {
	c := New(Config{})
	never := corev1.PreemptNever
	p := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Value: 1, PreemptionPolicy: &never, GlobalDefault: true}
	c.UpsertPriorityClass(p)
	if !c.NeverPreempts("p") || !c.NeverPreempts("") || c.NeverPreempts("other") {
		t.Error("the policy of the class is not known")
	}
	p = p.DeepCopy()
	p.PreemptionPolicy = nil
	c.UpsertPriorityClass(p)
	if c.NeverPreempts("p") {
		t.Error("the class has changed")
	}
}
