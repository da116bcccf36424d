package podgroup

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/scheduler"
)

// lateWriter is a writer whose answer to a status write the test gives.
type lateWriter struct {
	apiwriter.Writer
	done func(apiwriter.Object, error)
}

func (w *lateWriter) Status(_ apiwriter.Meta, _ apiwriter.Object, _ bool, done func(apiwriter.Object, error)) {
	w.done = done
}

func (*lateWriter) Event(apiwriter.Object, string, string, string) {}

type noScheduler struct{}

func (noScheduler) Submit(*scheduler.Gang)                      {}
func (noScheduler) Withdraw(string)                             {}
func (noScheduler) Promise(string, string, corev1.ResourceList) {}

// TestNothingIsKeptOfADeletedPod deletes a pod while the status that says why it waits is being
// written.
func TestNothingIsKeptOfADeletedPod(t *testing.T) {
	set, err := informer.NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		t.Fatal(err)
	}
	writer := &lateWriter{}
	c, err := New(Config{Informers: set, Cluster: cluster.New(cluster.Config{}), Scheduler: noScheduler{}, Writer: writer})
	if err != nil {
		t.Fatal(err)
	}
	p := member("p", "", "", corev1.PodPending)
	c.mu.Lock()
	c.reportPod(key{pod: true, name: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}}, p, &waitReason{message: "no room"}, metav1.Now())
	c.mu.Unlock()
	c.forgetPod(p)
	writer.done(p, nil)
	if len(c.reports) != 0 {
		t.Errorf("kept: %v", c.reports)
	}
}

// TestAWaitIsReportedOnceItLasts lets a group of two pods wait, and a pod without a group.
func TestAWaitIsReportedOnceItLasts(t *testing.T) {
	set, err := informer.NewSet(&rest.Config{Host: "http://none"})
	if err != nil {
		t.Fatal(err)
	}
	clock := testingclock.NewFakeClock(time.Now())
	writer := &lateWriter{}
	c, err := New(Config{
		Informers: set, Cluster: cluster.New(cluster.Config{}), Scheduler: noScheduler{}, Writer: writer, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	pg := &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g", CreationTimestamp: metav1.NewTime(clock.Now())},
		Spec:       schedulingv1beta1.PodGroupSpec{MinMember: 2},
	}
	group, single := key{name: types.NamespacedName{Namespace: "ns", Name: "g"}}, key{pod: true, name: types.NamespacedName{Namespace: "ns", Name: "s"}}
	waiting := []*corev1.Pod{member("a", "", "", corev1.PodPending), member("b", "", "", corev1.PodPending)}
	reports := func(k key, pg *schedulingv1beta1.PodGroup, pods []*corev1.Pod, since time.Time) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		writer.done = nil
		u := &groupState{waiting: &waitReason{reason: "NotEnoughResources", message: "no room"}, since: since}
		c.report(k, u, pg, countMembers(pods, c.isBinding))
		return writer.done != nil
	}
	start := clock.Now()
	for _, x := range []struct {
		after         time.Duration
		group, single bool
	}{{0, false, false}, {999 * time.Millisecond, false, false}, {time.Second, false, true}, {4999 * time.Millisecond, false, true}, {5 * time.Second, true, true}} {
		clock.SetTime(start.Add(x.after))
		clear(c.reports)
		if got := reports(group, pg, waiting, start); got != x.group {
			t.Errorf("after %v: the group's wait is reported: %v", x.after, got)
		}
		clear(c.reports)
		if got := reports(single, nil, waiting[:1], start); got != x.single {
			t.Errorf("after %v: the pod's wait is reported: %v", x.after, got)
		}
	}
}
