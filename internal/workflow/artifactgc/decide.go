package artifactgc

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/workflow/compress"
	"lockstep.dev/lockstep/internal/workflow/execapi"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// due returns the artifactGC strategies that are due and not yet carried out.
func due(w *wf.Workflow) []string {
	switch {
	case !w.Status.Phase.Completed():
		return nil
	case w.DeletionTimestamp != nil:
		return []string{wf.ArtifactGCOnCompletion, wf.ArtifactGCOnDeletion}
	case w.Status.ArtifactGCStatus != nil && w.Status.ArtifactGCStatus.StrategiesProcessed[wf.ArtifactGCOnCompletion]:
		return nil
	}
	return []string{wf.ArtifactGCOnCompletion}
}

// forced reports whether a workflow may be deleted although artifacts are left.
func forced(w *wf.Workflow) bool {
	for _, s := range []*wf.WorkflowSpec{&w.Spec, w.EffectiveSpec()} {
		if s.ArtifactGC != nil && s.ArtifactGC.ForceFinalizerRemoval {
			return true
		}
	}
	return false
}

// outcome is the combined result of the pods of a workflow.
type outcome struct {
	deleted []pods.Collected
	faults  []string
	pods    []string
	left    int
}

// take adds the result of a finished pod.
func (o *outcome) take(c *pods.Collection, pod *corev1.Pod) {
	o.pods = append(o.pods, pod.Name)
	failed := func(message string) {
		o.left += len(c.Artifacts)
		o.faults = append(o.faults, fmt.Sprintf("pod %s: %s", pod.Name, message))
	}
	if pod.Status.Phase == corev1.PodSucceeded {
		o.deleted = append(o.deleted, c.Artifacts...)
		return
	}
	for i := range pod.Status.ContainerStatuses {
		t := pod.Status.ContainerStatuses[i].State.Terminated
		if t == nil {
			continue
		}
		report, found := execapi.DecodeReport(t.Message)
		switch {
		case !found:
			failed(fmt.Sprintf("exit code %d %s", t.ExitCode, t.Reason))
		case len(report.Left) == 0:
			failed(report.Message)
		case slices.Max(report.Left) >= len(c.Artifacts):
			// The indexes do not belong to this pod's artifacts: none of these is known to be
			// deleted.
			o.left += len(c.Artifacts)
			o.faults = append(o.faults, report.Message)
		default:
			for i := range c.Artifacts {
				if !slices.Contains(report.Left, i) {
					o.deleted = append(o.deleted, c.Artifacts[i])
				}
			}
			o.left += len(report.Left)
			o.faults = append(o.faults, report.Message)
		}
		return
	}
	failed(strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message))
}

// message returns a message about what was not deleted and what the user can do.
func (o *outcome) message() string {
	return fmt.Sprintf("%d artifacts could not be deleted: %s. Delete the pods that failed to try again, or set spec.artifactGC.forceFinalizerRemoval "+
		"to let the workflow be deleted without", o.left, strings.Join(o.faults, "; "))
}

// record returns the JSON patch that records the outcome in a workflow's status. It is empty if the
// status records the outcome already.
func record(w *wf.Workflow, nodes wf.Nodes, strategies []string, o *outcome) ([]apiwriter.PatchOp, error) {
	var ops []apiwriter.PatchOp
	marked := mark(nodes, o.deleted)
	if _, err := compress.Nodes(&w.Status); errors.Is(err, compress.ErrInDatabase) {
		marked = nil // versions of nodes in a database are not changed
	}
	if len(marked) > 0 && w.Status.CompressedNodes != "" {
		data, err := json.Marshal(nodes)
		if err != nil {
			return nil, err
		}
		text, err := compress.Pack(data)
		if err != nil {
			return nil, err
		}
		ops = append(ops, apiwriter.PatchOp{Op: "replace", Path: "/status/compressedNodes", Value: text})
	} else {
		for _, id := range marked {
			ops = append(ops, apiwriter.PatchOp{Op: "replace", Path: "/status/nodes/" + id + "/outputs/artifacts", Value: nodes[id].Outputs.Artifacts})
		}
	}
	if w.Status.Outputs != nil && markList(w.Status.Outputs.Artifacts, locations(o.deleted)) {
		ops = append(ops, apiwriter.PatchOp{Op: "replace", Path: "/status/outputs/artifacts", Value: w.Status.Outputs.Artifacts})
	}
	status := &wf.ArtifactGCStatus{StrategiesProcessed: map[string]bool{}, PodsRecouped: map[string]bool{}}
	if old := w.Status.ArtifactGCStatus; old != nil {
		maps.Copy(status.StrategiesProcessed, old.StrategiesProcessed)
		maps.Copy(status.PodsRecouped, old.PodsRecouped)
	}
	before := len(status.StrategiesProcessed) + len(status.PodsRecouped)
	for _, s := range strategies {
		status.StrategiesProcessed[s] = true
	}
	for _, name := range o.pods {
		status.PodsRecouped[name] = true
	}
	if len(status.StrategiesProcessed)+len(status.PodsRecouped) > before {
		ops = append(ops, apiwriter.PatchOp{Op: "add", Path: "/status/artifactGCStatus", Value: status})
	}
	if conditions, changed := conditions(w, o); changed {
		ops = append(ops, apiwriter.PatchOp{Op: "add", Path: "/status/conditions", Value: conditions})
	}
	return ops, nil
}

func conditions(w *wf.Workflow, o *outcome) (list []wf.Condition, changed bool) {
	var old wf.Condition
	for _, c := range w.Status.Conditions {
		if c.Type == wf.ConditionArtifactGCError {
			old = c
			continue
		}
		list = append(list, c)
	}
	var now wf.Condition
	if len(o.faults) > 0 {
		now = wf.Condition{Type: wf.ConditionArtifactGCError, Status: metav1.ConditionTrue, Message: o.message()}
		list = append(list, now)
	}
	return list, now != old
}

// mark marks artifacts as deleted in every node that lists them, and returns the IDs of the changed
// nodes.
func mark(nodes wf.Nodes, deleted []pods.Collected) []string {
	gone := locations(deleted)
	var changed []string
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		if n := nodes[id]; n.Outputs != nil && markList(n.Outputs.Artifacts, gone) {
			changed = append(changed, id)
		}
	}
	return changed
}

func markList(list []wf.Artifact, gone map[string]bool) (changed bool) {
	for i := range list {
		if a := &list[i]; !a.Deleted && gone[locationText(&a.ArtifactLocation)] {
			a.Deleted, changed = true, true
		}
	}
	return changed
}

func locations(deleted []pods.Collected) map[string]bool {
	out := map[string]bool{}
	for i := range deleted {
		out[locationText(&deleted[i].Location)] = true
	}
	return out
}

func locationText(l *wf.ArtifactLocation) string {
	data, err := json.Marshal(l)
	if err != nil || string(data) == "{}" {
		return ""
	}
	return string(data)
}

// release returns the JSON patch that removes the artifact finalizer.
func release(w *wf.Workflow) []apiwriter.PatchOp {
	left := slices.DeleteFunc(slices.Clone(w.Finalizers), func(f string) bool { return f == wf.FinalizerArtifactGC })
	return []apiwriter.PatchOp{{Op: "replace", Path: "/metadata/finalizers", Value: left}}
}
