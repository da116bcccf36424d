package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/panics"
)

// TestWorkflowsDoNotWaitForADeletedTemplate checks that a sweep wakes the workflows that wait for a
// malformed template that was deleted, and only those.
func TestWorkflowsDoNotWaitForADeletedTemplate(t *testing.T) {
	d := newDesk(t, Config{})
	template := &wf.WorkflowTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "bad", UID: "t", ResourceVersion: "1"}}
	if err := d.Informers.WorkflowTemplates.Store().Add(template); err != nil {
		t.Fatal(err)
	}
	d.Informers.WorkflowTemplates.SetApart("ns", "bad", "t", &panics.Panic{})
	d.show("1", "spec: {workflowTemplateRef: {name: bad}}")
	d.expect()
	d.sweep()
	if n := d.loop.Depth(); n != 0 {
		t.Errorf("%d workflows are woken although the template is malformed", n)
	}
	d.templateWaiters.add(types.NamespacedName{Namespace: "ns", Name: "deleted"}, types.NamespacedName{Namespace: "ns", Name: "other"})
	d.templateWaiters.add(types.NamespacedName{Name: "deleted"}, types.NamespacedName{Namespace: "ns", Name: "third"})
	d.sweep()
	if n := d.loop.Depth(); n != 2 || len(d.templateWaiters.by) != 1 {
		t.Errorf("%d workflows are woken, want 2; others wait for %v", n, d.templateWaiters.by)
	}
}

// TestAWorkflowWaitsForATemplateCreatedJustBeforeIt checks that a new workflow waits for a template
// that the watch has not shown yet, but not for long.
func TestAWorkflowWaitsForATemplateCreatedJustBeforeIt(t *testing.T) {
	for sentence, appears := range map[string]bool{"the template appears": true, "there is no template": false} {
		t.Run(sentence, func(t *testing.T) {
			d := newDesk(t, Config{})
			d.show("1", "metadata: {creationTimestamp: "+d.clock.Now().UTC().Format(time.RFC3339)+"}\nspec: {workflowTemplateRef: {name: late}}")
			d.expect()
			if !appears {
				d.clock.Step(missingMax)
				d.loop.Take(d.key)
				d.expect("workflow-status w")
				return
			}
			template := &wf.WorkflowTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "late", UID: "t", ResourceVersion: "1"}}
			template.Spec.Entrypoint = "main"
			template.Spec.Templates = []wf.Template{{Name: "main", Suspend: &wf.SuspendTemplate{}}}
			if err := d.Informers.WorkflowTemplates.Store().Add(template); err != nil {
				t.Fatal(err)
			}
			d.wakeWaiting(types.NamespacedName{Namespace: "ns", Name: "late"}) // as the informer's handler does
			if d.loop.Depth() != 1 {
				t.Fatal("the template does not wake the workflow")
			}
			d.loop.Take(d.key)
			if r := d.loop.Get(d.key); r == nil || r.run == nil {
				t.Error("the workflow does not run")
			}
		})
	}
}

// TestAWorkflowWaitsForEveryMalformedTemplate checks that a workflow waits for a malformed template
// wherever it refers to the template.
func TestAWorkflowWaitsForEveryMalformedTemplate(t *testing.T) {
	const ref = "{templateRef: {name: bad, template: t}, expression: \"false\"}"
	for name, spec := range map[string]string{
		"a step": "templates: [{name: main, steps: [[{name: a, templateRef: {name: bad, template: t}}]]}]",
		"a task of an inline template": "templates: [{name: main, steps: [[{name: a, inline: {dag: {tasks: " +
			"[{name: b, templateRef: {name: bad, template: t}}]}}}]]}]",
		"a hook of the workflow": "hooks: {h: " + ref + "}, templates: [{name: main, suspend: {}}]",
		"a hook of a step":       "templates: [{name: main, steps: [[{name: a, template: p, hooks: {h: " + ref + "}}]]}, {name: p, suspend: {}}]",
		"a hook of a task":       "templates: [{name: main, dag: {tasks: [{name: a, template: p, hooks: {h: " + ref + "}}]}}, {name: p, suspend: {}}]",
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, Config{})
			template := &wf.WorkflowTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "bad", UID: "t", ResourceVersion: "1"}}
			if err := d.Informers.WorkflowTemplates.Store().Add(template); err != nil {
				t.Fatal(err)
			}
			d.Informers.WorkflowTemplates.SetApart("ns", "bad", "t", &panics.Panic{})
			d.show("1", "spec: {entrypoint: main, "+spec+"}")
			d.expect()
		})
	}
}
