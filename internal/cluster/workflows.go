package cluster

import (
	"bytes"
	"encoding/json"
	"reflect"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/rawjson"
)

// A workflow that has ended is kept for as long as its time to live says, by the thousands; only what decides how long that is
// and what is to be deleted with it is read of it.

// keptOfSpec are the fields of its spec that stay.
var keptOfSpec = map[string]bool{
	"workflowTemplateRef": true, "ttlStrategy": true, "podGC": true, "volumeClaimGC": true, "podDisruptionBudget": true, "shutdown": true,
}

// cutFromStatus are the fields of its status that go.
var cutFromStatus = map[string]bool{"nodes": true, "compressedNodes": true, "storedTemplates": true}

// cutWorkflow is trimWorkflow before a workflow is decoded.
func cutWorkflow(out []byte, kind string, object []byte) ([]byte, error) {
	if kind != "Workflow" || !bytes.Contains(object, completedLabel) || !hasEnded(object) {
		return kubeclient.WithoutManagedFields(out, object)
	}
	return kubeclient.CutMembers(out, object, func(out []byte, name string, value []byte) ([]byte, bool, error) {
		var cut func(key string) bool
		switch name {
		case "metadata":
			cut = func(key string) bool { return key == "managedFields" }
		case "spec":
			cut = func(key string) bool { return !keptOfSpec[key] }
		case "status":
			cut = func(key string) bool { return cutFromStatus[key] }
		default:
			return out, false, nil
		}
		out, err := kubeclient.CutMembers(append(append(append(out, '"'), name...), `":`...), value, func(out []byte, name string, _ []byte) ([]byte, bool, error) {
			return out, cut(name), nil
		})
		return out, true, err
	})
}

// completedLabel is in each encoded workflow that has ended, and in few others.
var completedLabel = []byte(`"` + argov1alpha1.LabelCompleted + `":"true"`)

// hasEnded says whether trimWorkflow would take a workflow for one that has ended.
func hasEnded(object []byte) bool {
	var labels map[string]string
	var phase argov1alpha1.WorkflowPhase
	return member(object, "metadata", "labels", &labels) && labels[argov1alpha1.LabelCompleted] == "true" &&
		member(object, "status", "phase", &phase) && phase.Completed()
}

// member decodes a member of a member of an object, and says whether there was one.
func member(object []byte, outer, inner string, into any) (found bool) {
	value, err := rawjson.Value(object, outer)
	if err == nil && value != nil {
		value, err = rawjson.Value(value, inner)
	}
	return err == nil && value != nil && json.Unmarshal(value, into) == nil
}

// trimWorkflow shares what did not change with the version before, so that a workflow that runs is not held twice, and
// keeps of one that has ended what decides how long it and its pods stay.
func (i *Informers) trimWorkflow(w *argov1alpha1.Workflow) {
	if w.Status.Phase.Completed() && w.Labels[argov1alpha1.LabelCompleted] == "true" {
		w.Spec = argov1alpha1.WorkflowSpec{
			WorkflowTemplateRef: w.Spec.WorkflowTemplateRef, TTLStrategy: w.Spec.TTLStrategy, PodGC: w.Spec.PodGC,
			VolumeClaimGC: w.Spec.VolumeClaimGC, PodDisruptionBudget: w.Spec.PodDisruptionBudget, Shutdown: w.Spec.Shutdown,
		}
		if stored := w.Status.StoredWorkflowTemplateSpec; stored != nil {
			stored.Templates = nil
		}
		w.Status.Nodes, w.Status.CompressedNodes, w.Status.StoredTemplates = nil, "", nil
		return
	}
	if old, found := i.Workflows.Get(w.Namespace, w.Name); found && old.UID == w.UID && reflect.DeepEqual(old.Spec, w.Spec) {
		w.Spec = old.Spec
		return
	}
	i.specs.share(&w.Spec)
}
