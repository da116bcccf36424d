package executor

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/executor/incluster"
)

// taskPatience bounds the write of a WorkflowTaskResult.
const taskPatience = 2 * time.Minute

// These types have the needed parts of a WorkflowTaskResult. The type of the API would link the
// packages of Kubernetes into this program.
type (
	taskResult struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Outputs    *taskOutputs   `json:"outputs,omitempty"`
		Progress   string         `json:"progress,omitempty"`
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

// createTaskResult writes a report into the node's WorkflowTaskResult. The report has outputs, or
// only the progress of a running command.
func createTaskResult(task *execapi.Task, report *execapi.Report) error {
	client, err := incluster.New()
	if err != nil {
		return err
	}
	if onlyProgress(report) {
		return putTaskResult(client, task, nil, report.Progress)
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
	return putTaskResult(client, task, outputs, report.Progress)
}

func onlyProgress(r *execapi.Report) bool {
	return r.Progress != "" && r.Result == nil && len(r.Parameters)+len(r.Artifacts) == 0
}

func putTaskResult(client *incluster.Client, task *execapi.Task, outputs *taskOutputs, progress string) error {
	object := &taskResult{
		APIVersion: "argoproj.io/v1alpha1", Kind: "WorkflowTaskResult", Outputs: outputs, Progress: progress,
		Metadata: map[string]any{
			"name": task.Name,
			"labels": map[string]string{
				"workflows.argoproj.io/workflow": task.Workflow, "workflows.argoproj.io/report-outputs-completed": strconv.FormatBool(outputs != nil),
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
	// An earlier request whose answer was lost, or an earlier pod of the node, created it.
	if incluster.Is(err, http.StatusConflict) {
		err = client.Do(ctx, http.MethodPatch, path+"/"+task.Name, "application/merge-patch+json", object, nil)
	}
	return err
}
