package engine

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

func exited(name string, code int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
}

func TestObserve(t *testing.T) {
	for name, test := range map[string]struct {
		notes   map[string]string
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
			phase:  corev1.PodFailed, message: "main: Error (exit code 3)",
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
		"an end because of injected containers": {
			notes: map[string]string{wf.AnnotationEnding: "mesh"},
			status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded", Message: "Pod was active longer than it may.",
				ContainerStatuses:     []corev1.ContainerStatus{exited("main", 0), exited("mesh", 137)},
				InitContainerStatuses: []corev1.ContainerStatus{exited("native", 143)}},
			phase: corev1.PodSucceeded,
		},
		"a failure beside injected containers": {
			notes: map[string]string{wf.AnnotationEnding: "mesh"},
			status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded", Message: "Pod was active longer than it may.",
				ContainerStatuses: []corev1.ContainerStatus{exited("main", 3), exited("mesh", 1)}},
			phase: corev1.PodFailed, message: "main: Error (exit code 3)",
		},
		"a set beside an injected container that fails": {
			notes:  map[string]string{wf.AnnotationMembers: "a,b"},
			status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{exited("a", 0), exited("b", 0), exited("mesh", 1)}},
			phase:  corev1.PodSucceeded,
		},
		"a deadline of the user while the annotation is set": {
			notes: map[string]string{wf.AnnotationEnding: "mesh"},
			status: corev1.PodStatus{Phase: corev1.PodFailed, Message: "Pod was active longer than it may.",
				ContainerStatuses: []corev1.ContainerStatus{{Name: "main"}, exited("mesh", 1)}},
			phase: corev1.PodFailed, message: "Pod was active longer than it may.",
		},
		"a pod that does not fit": {
			status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node"}}},
			phase: corev1.PodPending, message: "Unschedulable: no node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Observe(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: test.notes}, Status: test.status})
			if s.Phase != test.phase || s.Message != test.message || s.Error != test.isError {
				t.Errorf("got %s %q error=%v, want %s %q error=%v", s.Phase, s.Message, s.Error, test.phase, test.message, test.isError)
			}
		})
	}
}

func TestLeftOver(t *testing.T) {
	runs := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	}
	for name, test := range map[string]struct {
		notes      map[string]string
		phase      corev1.PodPhase
		containers []corev1.ContainerStatus
		want       string
	}{
		"main runs":                {nil, corev1.PodRunning, []corev1.ContainerStatus{runs("main"), runs("mesh")}, ""},
		"main has ended":           {nil, corev1.PodRunning, []corev1.ContainerStatus{exited("main", 0), runs("mesh"), runs("agent")}, "mesh,agent"},
		"main has failed":          {nil, corev1.PodRunning, []corev1.ContainerStatus{exited("main", 1), runs("mesh")}, "mesh"},
		"all have ended":           {nil, corev1.PodRunning, []corev1.ContainerStatus{exited("main", 0), exited("mesh", 0)}, ""},
		"the pod has ended":        {nil, corev1.PodSucceeded, []corev1.ContainerStatus{exited("main", 0), runs("mesh")}, ""},
		"one of a set runs":        {map[string]string{wf.AnnotationMembers: "a,b"}, corev1.PodRunning, []corev1.ContainerStatus{exited("a", 0), runs("b"), runs("mesh")}, ""},
		"a set has ended":          {map[string]string{wf.AnnotationMembers: "a,b"}, corev1.PodRunning, []corev1.ContainerStatus{exited("a", 0), exited("b", 0), runs("mesh")}, "mesh"},
		"nothing is known of main": {nil, corev1.PodRunning, []corev1.ContainerStatus{runs("mesh")}, ""},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: test.notes}, Status: corev1.PodStatus{Phase: test.phase, ContainerStatuses: test.containers}}
		if got := strings.Join(LeftOver(p), ","); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
