package rerun

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// RetryOptions configures which nodes run again besides the failed ones.
type RetryOptions struct {
	// RestartSuccessful restarts the nodes that Select matches even if they succeeded.
	RestartSuccessful bool
	Select            func(*wf.NodeStatus) bool
	Parameters        map[string]string // values for arguments of the workflow, by name
	Now               time.Time         // the new start time
}

// Plan is the result of Retry.
type Plan struct {
	Workflow *wf.Workflow // to be written once the pods are gone
	Pods     []string     // names of pods to delete, which may not exist
	Restart  []string     // names of restarted nodes, without the nodes inside and after them
}

// Retry plans to run a finished workflow again from where it failed. It does not change w, whose
// nodes must be uncompressed. The plan's workflow starts at Now: the controller deletes older pods
// of nodes that the workflow no longer has.
func Retry(w *wf.Workflow, o RetryOptions) (Plan, error) {
	selecting := o.RestartSuccessful && o.Select != nil
	switch w.Status.Phase {
	case wf.WorkflowFailed, wf.WorkflowError:
	case wf.WorkflowSucceeded:
		if !selecting {
			return Plan{}, fmt.Errorf("workflow %s has succeeded: say which nodes to restart, and that successful ones shall be",
				w.Name)
		}
	default:
		return Plan{}, fmt.Errorf("workflow %s is not finished, it is %q: only what has failed can be retried", w.Name,
			w.Status.Phase)
	}
	if gc := w.Status.ArtifactGCStatus; gc != nil && gc.StrategiesProcessed[wf.ArtifactGCOnCompletion] && hasDeleted(w) {
		return Plan{}, fmt.Errorf(
			"artifacts of workflow %s have been deleted, as its artifactGC says: it can only be submitted again", w.Name)
	}
	if o.Select != nil && !o.RestartSuccessful {
		return Plan{}, errors.New("nodes can only be chosen together with restarting successful ones")
	}
	if len(w.Status.Nodes) == 0 && w.Status.CompressedNodes != "" {
		return Plan{}, fmt.Errorf("the nodes of workflow %s are compressed", w.Name)
	}
	t := newTree(w)
	if selecting {
		for _, n := range t.sorted {
			if o.Select(n) && n.Type != wf.NodeStepGroup && n.Type != wf.NodeContainer {
				t.restart(n)
			}
		}
		if len(t.restarted) == 0 && w.Status.Phase == wf.WorkflowSucceeded {
			return Plan{}, fmt.Errorf("workflow %s has no such node", w.Name)
		}
	}
	t.restartFailed()
	t.dropWorkflowHooks()

	out := w.DeepCopy()
	open(out, o.Now)
	setParameters(out, o.Parameters)
	plan := Plan{Workflow: out, Restart: t.restarted}
	for id := range t.gone {
		n := out.Status.Nodes[id]
		if n.Type == wf.NodePod {
			plan.Pods = append(plan.Pods, n.PodName(w.Name))
		}
		delete(out.Status.Nodes, id)
	}
	slices.Sort(plan.Pods)
	for id, n := range out.Status.Nodes {
		lost := func(id string) bool { _, found := out.Status.Nodes[id]; return !found }
		n.Children = slices.DeleteFunc(n.Children, lost)
		n.OutboundNodes = slices.DeleteFunc(n.OutboundNodes, lost)
		if t.reset[id] {
			n.Phase, n.Message, n.FinishedAt = wf.PhaseRunning, "", metav1.Time{}
			n.Outputs, n.OutboundNodes, n.Daemoned, n.SynchronizationStatus, n.MemoizationStatus = nil, nil, nil, nil, nil
		}
		out.Status.Nodes[id] = n
	}
	return plan, nil
}

// hasDeleted reports whether any artifact of a workflow was deleted.
func hasDeleted(w *wf.Workflow) bool {
	for _, n := range w.Status.Nodes {
		if n.Outputs != nil && slices.ContainsFunc(n.Outputs.Artifacts, func(a wf.Artifact) bool { return a.Deleted }) {
			return true
		}
	}
	return false
}

// open makes a finished workflow a running one.
func open(w *wf.Workflow, now time.Time) {
	w.Spec.Shutdown = wf.ShutdownNone
	if stored := w.Status.StoredWorkflowTemplateSpec; stored != nil {
		stored.Shutdown = wf.ShutdownNone
	}
	s := &w.Status
	s.Phase, s.Message, s.Conditions, s.Synchronization = wf.WorkflowRunning, "", nil, nil
	s.ArtifactGCStatus = nil
	s.StartedAt, s.FinishedAt = metav1.NewTime(now), metav1.Time{}
	if w.Labels == nil {
		w.Labels = map[string]string{}
	}
	w.Labels[wf.LabelPhase], w.Labels[wf.LabelCompleted] = string(wf.WorkflowRunning), "false"
	delete(w.Labels, wf.LabelArchivingStatus)
	delete(w.Annotations, wf.AnnotationArchived)
}

// setParameters sets the values of arguments.
func setParameters(w *wf.Workflow, values map[string]string) {
	set := func(args *wf.Arguments) {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			at := slices.IndexFunc(args.Parameters, func(p wf.Parameter) bool { return p.Name == name })
			if at < 0 {
				args.Parameters = append(args.Parameters, wf.Parameter{Name: name})
				at = len(args.Parameters) - 1
			}
			args.Parameters[at].Value, args.Parameters[at].ValueFrom = wf.Any(values[name]), nil
		}
	}
	set(&w.Spec.Arguments)
	if stored := w.Status.StoredWorkflowTemplateSpec; stored != nil {
		set(&stored.Arguments)
	}
}
