package simnode

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
)

func TestNodesMatchTheirStage(t *testing.T) {
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	for _, tt := range []struct {
		name     string
		node     *corev1.Node
		stage    string
		min, max time.Duration
	}{
		{name: "a node without conditions becomes ready", node: &corev1.Node{}, stage: "node-ready"},
		{name: "a node that is not ready becomes ready", node: node(corev1.ConditionUnknown), stage: "node-ready"},
		{name: "a ready node reports now and then", node: node(corev1.ConditionTrue), stage: "node-heartbeat", min: heartbeatMin, max: heartbeatMax},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cycle, err := lifecycle.NewLifecycle(stages()[nodeRef])
			if err != nil {
				t.Fatal(err)
			}
			event := &lifecycle.Event{Data: tt.node}
			stage, err := cycle.Match(t.Context(), event)
			if err != nil {
				t.Fatal(err)
			}
			if stage == nil || stage.Name() != tt.stage {
				t.Fatalf("stage %v, want %q", stage, tt.stage)
			}
			// KWOK takes an error for no delay.
			delay, _, err := stage.Delay(t.Context(), event, time.Now())
			if delay < tt.min || delay > tt.max {
				t.Errorf("delay %s (%v), want %s to %s", delay, err, tt.min, tt.max)
			}
		})
	}
}
