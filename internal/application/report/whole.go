package report

import (
	"cmp"
	"fmt"

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
	w.Steps, w.Message = nil, ""
	ended := true
	for i := range a.Plan.Components {
		comp, state := &a.Plan.Components[i], &p.Components[i]
		phase, reason, message := stepState(a.Plan, comp, state, p.Finished, failed)
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

// stepState returns the state of a component as that of a step.
func stepState(in *plan.Plan, comp *plan.Component, state *deploy.ComponentState, finished bool, failed map[string]string) (oam.WorkflowStepPhase, string, string) {
	why, hasFailed := failed[comp.Name]
	switch {
	case finished:
		return oam.StepSucceeded, "", ""
	case hasFailed:
		return oam.StepFailed, oam.StepReasonFailedAfterRetries, why
	case state.Problem != "":
		return oam.StepFailed, oam.StepReasonExecute, state.Problem
	case state.Waits && dependsOnFailed(in, comp, failed):
		return oam.StepSkipped, oam.StepReasonSkip, ""
	case state.Waits:
		return oam.StepPending, "", ""
	case state.Applied && state.Healthy:
		return oam.StepSucceeded, "", ""
	}
	return oam.StepRunning, oam.StepReasonWait, ""
}

// dependsOnFailed reports whether a component depends on one that has failed.
func dependsOnFailed(in *plan.Plan, comp *plan.Component, failed map[string]string) bool {
	for _, d := range comp.DependsOn {
		if _, is := failed[d]; is {
			return true
		}
		for i := range in.Components {
			if in.Components[i].Name == d && dependsOnFailed(in, &in.Components[i], failed) {
				return true
			}
		}
	}
	return false
}
