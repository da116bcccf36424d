package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/plan"
)

// workflowStatus returns the workflow status of an Application without steps of its own. It has one
// step for each component. The workflow has failed when nothing but components that have failed,
// and those that depend on them, is left. It continues when what failed comes about after all.
func workflowStatus(a *deploy.State, before *oam.WorkflowStatus, p deploy.Progress, now metav1.Time) *oam.WorkflowStatus {
	last := a.Tracker.Latest()
	w := &oam.WorkflowStatus{Mode: "DAG-DAG", AppRevision: a.Tracker.Run(last.Name, last.Hash), StartTime: now}
	if before != nil && before.AppRevision == w.AppRevision {
		w = before.DeepCopy()
	}
	known := map[string]oam.WorkflowStepStatus{}
	for _, s := range w.Steps {
		known[s.Name] = s
	}
	failed := map[string]string{} // why, by component
	for i := range a.Plan.Components {
		name, state := a.Plan.Components[i].Name, &p.Components[i]
		// A manager that was started has not tried as often; the status says that another one has.
		if state.Failed || known[name].Reason == oam.StepReasonFailedAfterRetries && !state.Applied && !p.Finished {
			failed[name] = cmp.Or(state.Problem, known[name].Message)
		}
	}
	skipped := dependentsOf(a.Plan, failed)
	w.Steps, w.Message = nil, ""
	ended := true
	for i := range a.Plan.Components {
		comp, state := &a.Plan.Components[i], &p.Components[i]
		phase, reason, message := stepState(comp, state, p.Finished, failed, skipped)
		ended = ended && (phase != oam.StepRunning && phase != oam.StepPending && reason != oam.StepReasonExecute || comp.Policy && state.Applied)
		if why := failed[comp.Name]; why != "" && w.Message == "" {
			w.Message = fmt.Sprintf("step %s failed: %s", comp.Name, why)
		}
		if comp.Policy {
			continue
		}
		s, ok := known[comp.Name]
		if !ok {
			s.ID, s.Name, s.Type = plan.Hash([]byte(a.Key.String() + "/" + comp.Name))[:10], comp.Name, "apply-component"
		}
		if s.Phase != phase || s.Reason != reason || s.Message != message {
			s.Phase, s.Reason, s.Message, s.LastExecuteTime = phase, reason, message, now
			if s.FirstExecuteTime.IsZero() && phase != oam.StepPending {
				s.FirstExecuteTime = now
			}
		}
		w.Steps = append(w.Steps, s)
	}
	was := w.Phase
	w.Finished, w.Terminated, w.Phase = false, false, "executing"
	switch {
	case p.Finished:
		w.Finished, w.Phase = true, "succeeded"
	case ended && len(failed) > 0:
		w.Finished, w.Terminated, w.Phase = true, true, "failed"
	}
	if !w.Finished {
		w.EndTime = metav1.Time{}
	} else if w.Phase != was {
		w.EndTime = now
	}
	return w
}

// stepState returns the phase, reason and message of the workflow step that deploys comp. Failed has
// why components failed, and skipped those that depend on them.
func stepState(
	comp *plan.Component, state *deploy.ComponentState, finished bool, failed map[string]string, skipped map[string]bool,
) (oam.WorkflowStepPhase, string, string) {
	why, hasFailed := failed[comp.Name]
	switch {
	case finished:
		return oam.StepSucceeded, "", ""
	case hasFailed:
		return oam.StepFailed, oam.StepReasonFailedAfterRetries, why
	case state.Problem != "":
		return oam.StepFailed, oam.StepReasonExecute, state.Problem
	case state.Waits && skipped[comp.Name]:
		return oam.StepSkipped, oam.StepReasonSkip, ""
	case state.Waits:
		return oam.StepPending, "", ""
	case state.Applied && state.Healthy:
		return oam.StepSucceeded, "", ""
	}
	return oam.StepRunning, oam.StepReasonWait, ""
}

// dependentsOf returns the components that depend on one of failed, directly or through others. It
// visits each dependency once: the paths through a plan can be too many to walk.
func dependentsOf(in *plan.Plan, failed map[string]string) map[string]bool {
	on := map[string][]string{} // the dependents, by component
	for i := range in.Components {
		for _, d := range in.Components[i].DependsOn {
			on[d] = append(on[d], in.Components[i].Name)
		}
	}
	dependents := map[string]bool{}
	next := slices.Collect(maps.Keys(failed))
	for len(next) > 0 {
		name := next[len(next)-1]
		next = next[:len(next)-1]
		for _, d := range on[name] {
			if !dependents[d] {
				dependents[d] = true
				next = append(next, d)
			}
		}
	}
	return dependents
}
