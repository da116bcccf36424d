package informer

import (
	"bytes"
	"encoding/json"
	"reflect"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/rawjson"
)

// Thousands of workflows that have ended are kept until their time to live is over. Only the fields
// that decide how long they stay, and what is deleted with them, are kept.

// keptOfSpec lists the fields of the spec of an ended workflow that are kept.
var keptOfSpec = map[string]bool{
	"workflowTemplateRef": true, "ttlStrategy": true, "podGC": true, "volumeClaimGC": true, "podDisruptionBudget": true, "shutdown": true,
}

// cutFromStatus lists the fields of the status of an ended workflow that are dropped.
var cutFromStatus = map[string]bool{"nodes": true, "compressedNodes": true, "storedTemplates": true}

// cutWorkflow does the work of trimWorkflow on the encoded object, before it is decoded.
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

// completedLabel is contained in every encoded workflow that has ended, and in few others.
var completedLabel = []byte(`"` + argov1alpha1.LabelCompleted + `":"true"`)

// hasEnded reports whether trimWorkflow would treat the encoded workflow as ended.
func hasEnded(object []byte) bool {
	var labels map[string]string
	var phase argov1alpha1.WorkflowPhase
	return member(object, "metadata", "labels", &labels) && labels[argov1alpha1.LabelCompleted] == "true" &&
		member(object, "status", "phase", &phase) && phase.Completed()
}

// member decodes a member of a member of an encoded object, and reports whether it exists.
func member(object []byte, outer, inner string, into any) (found bool) {
	value, err := rawjson.Value(object, outer)
	if err == nil && value != nil {
		value, err = rawjson.Value(value, inner)
	}
	return err == nil && value != nil && json.Unmarshal(value, into) == nil
}

// trimWorkflow shares an unchanged spec with the previous version of the workflow, so that a
// running workflow is not stored twice. Of an ended workflow it keeps the fields that decide how
// long the workflow and its pods stay.
func (s *Set) trimWorkflow(w *argov1alpha1.Workflow) {
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
	if old, found := s.Workflows.Get(w.Namespace, w.Name); found && old.UID == w.UID && reflect.DeepEqual(old.Spec, w.Spec) {
		w.Spec = old.Spec
		return
	}
	s.specs.share(&w.Spec)
}
