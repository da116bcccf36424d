package podgroup

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/scheduler"
)

// promiseLog is a scheduler that records promises.
type promiseLog struct {
	noScheduler
	last string
}

func (l *promiseLog) Promise(_, queue string, amounts corev1.ResourceList) {
	cpu := amounts[corev1.ResourceCPU]
	l.last = fmt.Sprintf("%s %s", queue, cpu.String())
}

func newUnfed(t *testing.T, s Scheduler) *Controller {
	t.Helper()
	set, err := informer.NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Informers: set, Cluster: cluster.New(cluster.Config{}), Scheduler: s, Writer: &lateWriter{}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWhatIsPromised follows a group from its creation to its end. Each step says what exists, and
// what the scheduler was told last.
func TestWhatIsPromised(t *testing.T) {
	log := &promiseLog{}
	c := newUnfed(t, log)
	pod := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
		p := member(name, "", node, phase)
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
		}}}
		return p
	}
	pg := &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{MinMember: 1, Queue: "q", MinResources: &corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), "requests.cpu": resource.MustParse("8"), "count/pods": resource.MustParse("4"),
	}}}
	other := pg.DeepCopy()
	other.Spec.Queue = "other"
	k := key{name: types.NamespacedName{Namespace: "ns", Name: "g"}}
	u := &groupState{}
	for _, step := range []struct {
		what     string
		pods     []*corev1.Pod
		pg       *schedulingv1beta1.PodGroup
		admitted bool
		want     string
		asks     bool
	}{
		{"it has no pods", nil, pg, false, "", true},
		{"they may be created", nil, pg, true, "q 8", false},
		{"the driver waits", []*corev1.Pod{pod("d", "", corev1.PodPending)}, pg, true, "q 8", false},
		{"the driver has a node", []*corev1.Pod{pod("d", "n", corev1.PodPending)}, pg, true, "q 6", false},
		{"the queue is another", []*corev1.Pod{pod("d", "n", corev1.PodRunning)}, other, false, "other 6", false},
		{"an executor waits", []*corev1.Pod{pod("d", "n", corev1.PodRunning), pod("e", "", corev1.PodPending)}, pg, false, "q 6", false},
		{"an executor has ended", []*corev1.Pod{pod("d", "n", corev1.PodRunning), pod("e", "n", corev1.PodSucceeded)}, pg, false, "q 4", false},
		{"an executor has failed", []*corev1.Pod{pod("d", "n", corev1.PodRunning), pod("e", "n", corev1.PodFailed)}, pg, false, "q 6", false},
		{"all is there", []*corev1.Pod{
			pod("d", "n", corev1.PodRunning), pod("a", "n", corev1.PodRunning), pod("b", "n", corev1.PodRunning), pod("c", "n", corev1.PodRunning),
		}, pg, false, " 0", false},
		{"its pods have ended", []*corev1.Pod{pod("d", "n", corev1.PodSucceeded), pod("e", "n", corev1.PodFailed)}, pg, false, " 0", false},
		{"its pods were deleted before they ended", nil, pg, false, " 0", true},
		{"it runs again", []*corev1.Pod{pod("d", "n", corev1.PodPending)}, pg, false, "q 6", false},
		{"its PodGroup is deleted", []*corev1.Pod{pod("d", "n", corev1.PodRunning)}, nil, false, " 0", false},
	} {
		u.admitted = step.admitted
		m := countMembers(step.pods, func(*corev1.Pod) bool { return false })
		c.promise(k, u, step.pg, m)
		if log.last != step.want {
			t.Errorf("%s: the promise is %q, want %q", step.what, log.last, step.want)
		}
		if got := u.asks(step.pg, m); got != step.asks {
			t.Errorf("%s: it asks: %t", step.what, got)
		}
	}
}

// TestADeletedGroupIsPromisedNothing deletes a group while the scheduler lets it start.
func TestADeletedGroupIsPromisedNothing(t *testing.T) {
	log := &promiseLog{}
	c := newUnfed(t, log)
	(*owner)(c).Commit(&scheduler.Gang{Key: "podgroup/ns/g", Announced: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}}, nil)
	if log.last != " 0" {
		t.Errorf("the promise is %q", log.last)
	}
}
