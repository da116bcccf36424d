package simnode

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
)

func TestObjectsMatchTheirStage(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := func(phase corev1.PodPhase, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
		if change != nil {
			change(p)
		}
		return p
	}
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	timed := func(d string, ago time.Duration) *corev1.Pod {
		return pod(corev1.PodRunning, func(p *corev1.Pod) {
			p.Annotations = map[string]string{AnnotationDuration: d}
			p.Status.StartTime = &metav1.Time{Time: time.Now().Add(-ago)}
		})
	}
	for _, tt := range []struct {
		name     string
		object   any
		stage    string // empty: none
		min, max time.Duration
	}{
		{name: "a pending pod runs", object: pod(corev1.PodPending, nil), stage: "pod-run"},
		{name: "a running pod without duration stays", object: pod(corev1.PodRunning, nil)},
		{name: "a running pod with other annotations stays", object: pod(corev1.PodRunning, func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} })},
		{name: "a pod with a duration finishes after it", object: timed("1m", 0), stage: "pod-finish", min: time.Minute, max: time.Minute},
		{name: "a start time's missing fraction does not shorten it", object: timed("100ms", 900*time.Millisecond), stage: "pod-finish", min: 100 * time.Millisecond, max: 100 * time.Millisecond},
		{name: "a pod that had run before the simulation started again finishes after the rest", object: timed("1m", 40*time.Second), stage: "pod-finish", min: 19 * time.Second, max: 20 * time.Second},
		{name: "a finished pod stays", object: pod(corev1.PodSucceeded, func(p *corev1.Pod) { p.Annotations = map[string]string{AnnotationDuration: "1s"} })},
		{name: "a pod with a bad duration finishes at once", object: timed("soon", 0), stage: "pod-finish"},
		{name: "a deleted pod goes", object: pod(corev1.PodRunning, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, ptr.To[int64](30)
		}), stage: "pod-delete"},
		{name: "a deleted pod that no longer waits for its node is left to its finalizers", object: pod(corev1.PodPending, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, ptr.To[int64](0)
		})},
		{name: "a node without conditions becomes ready", object: &corev1.Node{}, stage: "node-ready"},
		{name: "a node that is not ready becomes ready", object: node(corev1.ConditionUnknown), stage: "node-ready"},
		{name: "a ready node reports now and then", object: node(corev1.ConditionTrue), stage: "node-heartbeat", min: heartbeatMin, max: heartbeatMax},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ref, annotations := podRef, map[string]string(nil)
			switch o := tt.object.(type) {
			case *corev1.Node:
				ref = nodeRef
			case *corev1.Pod:
				annotations = o.Annotations
			}
			cycle, err := lifecycle.NewLifecycle(stages()[ref])
			if err != nil {
				t.Fatal(err)
			}
			event := &lifecycle.Event{Annotations: annotations, Data: tt.object}
			stage, err := cycle.Match(t.Context(), event)
			if err != nil {
				t.Fatal(err)
			}
			if stage == nil {
				if tt.stage != "" {
					t.Fatalf("no stage, want %s", tt.stage)
				}
				return
			}
			if stage.Name() != tt.stage {
				t.Fatalf("stage %s, want %q", stage.Name(), tt.stage)
			}
			// An error means no delay to KWOK.
			delay, _, err := stage.Delay(t.Context(), event, now)
			if delay < tt.min || delay > tt.max {
				t.Errorf("delay %s (%v), want %s to %s", delay, err, tt.min, tt.max)
			}
		})
	}
}
