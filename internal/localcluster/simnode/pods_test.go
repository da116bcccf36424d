package simnode

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestNextStep(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(phase corev1.PodPhase, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
		if change != nil {
			change(p)
		}
		return p
	}
	timed := func(phase corev1.PodPhase, d string, ago time.Duration) *corev1.Pod {
		return pod(phase, func(p *corev1.Pod) {
			p.Annotations = map[string]string{AnnotationDuration: d}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-ago).Truncate(time.Second))}}}}
		})
	}
	deleted := func(grace int64) *corev1.Pod {
		return pod(corev1.PodRunning, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, ptr.To(grace)
		})
	}
	finalized := func(p *corev1.Pod) *corev1.Pod { p.Finalizers = []string{"test/keep"}; return p }
	for _, tt := range []struct {
		name    string
		pod     *corev1.Pod
		started time.Time
		step    step
		wait    time.Duration
	}{
		{name: "a pending pod runs", pod: pod(corev1.PodPending, nil), step: stepRun},
		{name: "a running pod without duration stays", pod: pod(corev1.PodRunning, nil)},
		{name: "a running pod with other annotations stays", pod: pod(corev1.PodRunning, func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} })},
		{name: "a pod with a duration finishes after it", pod: timed(corev1.PodRunning, "1m", 0), started: now, step: stepFinish, wait: time.Minute},
		{name: "a start time's missing fraction does not shorten it", pod: timed(corev1.PodRunning, "100ms", 900*time.Millisecond),
			started: now.Add(-10 * time.Millisecond), step: stepFinish, wait: 90 * time.Millisecond},
		{name: "a pod that ran before the simulation started again finishes after the rest", pod: timed(corev1.PodRunning, "1m", 40*time.Second),
			step: stepFinish, wait: 20 * time.Second},
		{name: "a pod that should have finished meanwhile finishes at once", pod: timed(corev1.PodRunning, "1m", 2*time.Minute), step: stepFinish, wait: -time.Minute},
		{name: "a finished pod stays", pod: timed(corev1.PodSucceeded, "1s", 0)},
		{name: "a failed pod stays", pod: timed(corev1.PodFailed, "1s", 0)},
		{name: "a pod with a bad duration finishes at once", pod: timed(corev1.PodRunning, "soon", 0), started: now, step: stepFinish},
		{name: "a deleted pod goes", pod: deleted(30), step: stepDelete},
		{name: "a deleted pod that no longer waits for its node goes when the deletion was broken off", pod: deleted(0), step: stepDelete, wait: brokenOffAfter},
		{name: "a deleted pod that no longer waits for its node is left to its finalizers", pod: finalized(deleted(0))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			step, at := nextStep(tt.pod, tt.started, now)
			if step != tt.step || at.Sub(now) != tt.wait {
				t.Errorf("step %d in %s, want %d in %s", step, at.Sub(now), tt.step, tt.wait)
			}
		})
	}
}

func TestMergeKeepsWhatOthersWrote(t *testing.T) {
	then, now := metav1.Unix(1, 0), metav1.Unix(2, 0)
	old := &corev1.PodStatus{
		Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable, StartTime: &then,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: then},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: then},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: then},
		},
	}
	kept := old.DeepCopy()
	got := merge(old, &corev1.PodStatus{
		Phase: corev1.PodSucceeded,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		},
	})
	want := &corev1.PodStatus{
		Phase: corev1.PodSucceeded, QOSClass: corev1.PodQOSBurstable, StartTime: &then,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: then},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: then},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(kept, old); diff != "" {
		t.Errorf("the old status was changed: %s", diff)
	}
}

func TestPodsHaveAddresses(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID("7b5a1c0e-0000-4000-8000-000000000001")}}
	ip, err := netip.ParseAddr(podIP(pod))
	if err != nil || !netip.MustParsePrefix("10.64.0.0/10").Contains(ip) {
		t.Errorf("address %s (%v)", ip, err)
	}
	pod.Spec.HostNetwork = true
	if got := podIP(pod); got != hostIP {
		t.Errorf("on the host's network: %s, want %s", got, hostIP)
	}
}
