package executor

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/workflow/executor/incluster"
	"lockstep.dev/lockstep/internal/workflow/handover"
)

// taskPatience bounds the writing of a WorkflowTaskResult.
const taskPatience = 2 * time.Minute

// Parts of a WorkflowTaskResult, whose Go type would bring all of Kubernetes' into this program.
type (
	taskResult struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Outputs    *taskOutputs   `json:"outputs,omitempty"`
	}
	taskOutputs struct {
		Parameters []taskParameter  `json:"parameters,omitempty"`
		Artifacts  []map[string]any `json:"artifacts,omitempty"`
		Result     *string          `json:"result,omitempty"`
	}
	taskParameter struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// createTaskResult writes the outputs of a report into the node's WorkflowTaskResult.
func createTaskResult(task *handover.Task, report *handover.Report) error {
	client, err := incluster.New()
	if err != nil {
		return err
	}
	outputs := &taskOutputs{Result: report.Result}
	for _, name := range slices.Sorted(maps.Keys(report.Parameters)) {
		outputs.Parameters = append(outputs.Parameters, taskParameter{name, report.Parameters[name]})
	}
	for _, saved := range report.Artifacts {
		artifact := map[string]any{}
		if err := json.Unmarshal(saved.Location, &artifact); err != nil {
			return err
		}
		artifact["name"] = saved.Name
		outputs.Artifacts = append(outputs.Artifacts, artifact)
	}
	return putTaskResult(client, task, outputs)
}

func putTaskResult(client *incluster.Client, task *handover.Task, outputs *taskOutputs) error {
	object := &taskResult{
		APIVersion: "argoproj.io/v1alpha1", Kind: "WorkflowTaskResult", Outputs: outputs,
		Metadata: map[string]any{
			"name": task.Name,
			"labels": map[string]string{
				"workflows.argoproj.io/workflow": task.Workflow, "workflows.argoproj.io/report-outputs-completed": "true",
			},
			"ownerReferences": []map[string]any{{
				"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": task.Workflow, "uid": task.WorkflowUID,
			}},
		},
	}
	ctx, cancel := context.WithTimeout(context.Background(), taskPatience)
	defer cancel()
	path := "/apis/argoproj.io/v1alpha1/namespaces/" + client.Namespace + "/workflowtaskresults"
	err := client.Do(ctx, http.MethodPost, path, "application/json", object, nil)
	if incluster.Is(err, http.StatusConflict) { // an answer that was lost, or an earlier pod of the node
		err = client.Do(ctx, http.MethodPatch, path+"/"+task.Name, "application/merge-patch+json", object, nil)
	}
	return err
}
