package controller_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/manager/managertest"
	"lockstep.dev/lockstep/internal/workflow/controller"
)

// TestEvents checks the events of workflows and nodes, if they are configured. Of what happens at
// once, Pending and Running of a node, only the last is reported.
func TestEvents(t *testing.T) {
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{Count: 1, Pods: 100}), localtest.WithInstall())
	managertest.Start(t, cluster, func(cfg *manager.Config) { cfg.WorkflowEvents = controller.Events{Workflows: true, Nodes: true} })
	e := newEnv(t, cluster)
	e.submit("good", `
entrypoint: main
templates:
- {name: main, steps: [[{name: a, template: leaf}, {name: never, template: leaf, when: "false"}]]}
- {name: leaf, metadata: {annotations: {lockstep.dev/sim-duration: 300ms}}, container: {image: a, command: [c]}}
`)
	e.submit("bad", `
entrypoint: main
templates:
- {name: main, metadata: {annotations: {lockstep.dev/sim-duration: 300ms, lockstep.dev/sim-exit-code: "3"}}, container: {image: a, command: [c]}}
`)
	e.until("good", inPhase(wf.WorkflowSucceeded))
	e.until("bad", inPhase(wf.WorkflowFailed))
	want := map[string][]string{
		"good": {
			"Normal WorkflowNodeRunning: Running node good", "Normal WorkflowNodeRunning: Running node good[0]",
			"Normal WorkflowNodeRunning: Running node good[0].a", "Normal WorkflowNodeSucceeded: Succeeded node good",
			"Normal WorkflowNodeSucceeded: Succeeded node good[0]", "Normal WorkflowNodeSucceeded: Succeeded node good[0].a",
			"Normal WorkflowRunning: Workflow Running", "Normal WorkflowSucceeded: Workflow completed",
		},
		"bad": {
			"Normal WorkflowNodeRunning: Running node bad", "Normal WorkflowRunning: Workflow Running",
			"Warning WorkflowFailed: main: Error (exit code 3)", "Warning WorkflowNodeFailed: Failed node bad: main: Error (exit code 3)",
		},
	}
	e.eventually("the events", func() error {
		list, err := e.core.CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Workflow"})
		if err != nil {
			return err
		}
		got := map[string][]string{}
		for _, v := range list.Items {
			got[v.InvolvedObject.Name] = append(got[v.InvolvedObject.Name], fmt.Sprintf("%s %s: %s", v.Type, v.Reason, v.Message))
		}
		for name := range want {
			if slices.Sort(got[name]); !slices.Equal(got[name], want[name]) {
				return fmt.Errorf("%s has\n%s", name, strings.Join(got[name], "\n"))
			}
		}
		return nil
	})
}
