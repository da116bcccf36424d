package controller

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/podset/podsettest"
)

// TestAPodNameThatAnEarlierWorkflowOfTheSameNameHas checks that a create is tried again while a pod
// of a deleted workflow terminates: nothing about that pod is posted to the new workflow.
func TestAPodNameThatAnEarlierWorkflowOfTheSameNameHas(t *testing.T) {
	d := newDesk(t, Config{})
	old, at := d.pod("w", "main", "old"), metav1.NewTime(d.clock.Now())
	old.DeletionTimestamp = &at
	if err := d.Informers.Pods.Store().Add(old); err != nil {
		t.Fatal(err)
	}
	d.show("1", "spec: {entrypoint: main, templates: [{name: main, container: {image: i, command: [c]}}]}")
	d.expect("workflow-pod w")
	d.answer("workflow-pod w", nil, apierrors.NewAlreadyExists(podsettest.Pods, "w"))
	d.loop.Take(d.key)
	d.expect()
	d.clock.Step(time.Second)
	d.loop.Take(d.key)
	d.expect("workflow-pod w")
}
