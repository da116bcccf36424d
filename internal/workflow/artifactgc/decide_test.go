package artifactgc

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/workflow/pods"
)

func TestWhatAPodSaysItLeft(t *testing.T) {
	for _, c := range []struct {
		name, message string
		deleted, left int
	}{
		{"the second", `{"lockstep":1,"failed":true,"left":[1],"message":"no bucket"}`, 1, 1},
		{"both", `{"lockstep":1,"failed":true,"left":[0,1],"message":"no bucket"}`, 0, 2},
		{"one that it was not given", `{"lockstep":1,"failed":true,"left":[2],"message":"no bucket"}`, 0, 2},
		{"nothing that is said", `{"lockstep":1,"failed":true,"message":"no bucket"}`, 0, 2},
		{"no report", `Killed`, 0, 2},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: c.message}}},
		}}}
		var o outcome
		o.take(&pods.Collection{Artifacts: make([]pods.Collected, 2)}, pod)
		if len(o.deleted) != c.deleted || o.left != c.left || len(o.faults) != 1 {
			t.Errorf("%s: %d deleted, %d left, faults %q; want %d and %d", c.name, len(o.deleted), o.left, o.faults, c.deleted, c.left)
		}
	}
}
