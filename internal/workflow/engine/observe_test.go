package engine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func exited(name string, code int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
}

func TestObserve(t *testing.T) {
	for name, test := range map[string]struct {
		status  corev1.PodStatus
		phase   corev1.PodPhase
		message string
		isError bool
	}{
		"a success": {
			status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{exited("main", 0)}},
			phase:  corev1.PodSucceeded,
		},
		"an exit code": {
			status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{exited("main", 3)}},
			phase:  corev1.PodFailed, message: "Error (exit code 3)",
		},
		"an exit code beside a sidecar": {
			status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{exited("side", 143), exited("main", 3)}},
			phase:  corev1.PodFailed, message: "main: Error (exit code 3)",
		},
		"a sidecar that was ended": {
			status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{exited("main", 0), exited("side", 137)}},
			phase:  corev1.PodSucceeded,
		},
		"a container of a set": {
			status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{exited("a", 0), exited("b", 2)}},
			phase:  corev1.PodFailed, message: "b: Error (exit code 2)",
		},
		"an init container": {
			status: corev1.PodStatus{Phase: corev1.PodFailed, InitContainerStatuses: []corev1.ContainerStatus{exited("init", 64)}},
			phase:  corev1.PodFailed, message: "init: Error (exit code 64)", isError: true,
		},
		"an eviction": {
			status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on memory."},
			phase:  corev1.PodFailed, message: "The node was low on memory.",
		},
		"a deadline": {
			status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded", Message: "Pod was active longer than it may."},
			phase:  corev1.PodFailed, message: "Pod was active longer than it may.",
		},
		"a pod that does not fit": {
			status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node"}}},
			phase: corev1.PodPending, message: "Unschedulable: no node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Observe(&corev1.Pod{Status: test.status})
			if s.Phase != test.phase || s.Message != test.message || s.Error != test.isError {
				t.Errorf("got %s %q error=%v, want %s %q error=%v", s.Phase, s.Message, s.Error, test.phase, test.message, test.isError)
			}
		})
	}
}
