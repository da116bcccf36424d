package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
)

const needsALock = `
spec:
  entrypoint: main
  podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}
  templates:
  - name: main
    dag: {tasks: [{name: a, template: pod}, {name: b, template: pod}, {name: c, template: locked, depends: b}]}
  - {name: pod, container: {image: i, command: [c]}}
  - {name: locked, synchronization: {mutexes: [{name: m}]}, container: {image: i, command: [c]}}
`

// TestWorkflowsAreLeftToTheLeader has a manager that does not lead find out that a workflow needs a
// lock. It must not delete pods whose end no status tells, and it must not begin the workflow anew
// when a user changes it before the annotation is seen.
func TestWorkflowsAreLeftToTheLeader(t *testing.T) {
	d := newDesk(t, Config{Owns: func(w *wf.Workflow) bool { return w.Annotations[wf.AnnotationLeader] == "" }})
	a, b := "workflow-pod "+wf.PodName("w", "w.a", "pod"), "workflow-pod "+wf.PodName("w", "w.b", "pod")
	d.show("1", needsALock)
	d.expect(a, b)
	d.end("w.a")
	d.loop.Take(d.key)
	d.clock.Step(time.Minute)
	d.loop.Take(d.key)
	d.expect(a, b, "workflow-status w")
	d.end("w.b")
	d.loop.Take(d.key)
	d.expect(a, b, "workflow-status w", "leave-to-leader w")
	d.answer("workflow-status w", &wf.Workflow{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}, nil)
	d.loop.Take(d.key)
	d.show("2", needsALock)
	d.show("3", needsALock+"  parallelism: 2\n") // by a user
	d.expect(a, b, "leave-to-leader w")
	d.answer("leave-to-leader w", &wf.Workflow{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "4"}}, nil)
	d.loop.Take(d.key)
	d.expect(a, b)
	d.show("4", "metadata: {annotations: {"+wf.AnnotationLeader+": 'true'}}\n"+needsALock)
	d.expect(a, b)
	if d.loop.Records() != 0 {
		t.Error("the workflow is kept although it is the leader's")
	}
}

// TestPodsOfAWorkflowThatIsLeftToTheLeaderStay checks that the leader finds the pods whose end no
// status tells.
func TestPodsOfAWorkflowThatIsLeftToTheLeaderStay(t *testing.T) {
	d := newDesk(t, Config{})
	d.show("1", needsALock)
	d.end("w.a")
	d.end("w.b")
	d.writes = nil
	d.loop.Take(d.key)
	d.expect("leave-to-leader w")
}

// TestAWorkflowThatCannotBeLeftToTheLeader checks that leaving is tried again.
func TestAWorkflowThatCannotBeLeftToTheLeader(t *testing.T) {
	d := newDesk(t, Config{})
	d.show("1", "spec: {entrypoint: main, templates: [{name: main, metadata: {annotations: {"+wf.KeyGang+": g}}, container: {image: i, command: [c]}}]}")
	d.expect("leave-to-leader w")
	d.answer("leave-to-leader w", nil, apiwriter.ErrStopped)
	d.loop.Take(d.key)
	d.expect("leave-to-leader w")
}
