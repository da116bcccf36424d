package flow

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Restart returns the status of a workflow that continues with a failed step: as if that step, and
// those that follow it or depend on it, had not started. It also returns the names of these steps. The
// status is nil if the step has not failed.
func Restart(p *Program, s *oam.WorkflowStatus, step string) (*oam.WorkflowStatus, []string) {
	failed := false
	for st := range StepsOf(s) {
		failed = failed || st.Name == step && st.Phase == oam.StepFailed
	}
	if !failed || p.byName[step] == nil {
		return nil, nil
	}
	again, groups := p.after(step)
	s = s.DeepCopy()
	s.Steps = slices.DeleteFunc(s.Steps, func(st oam.WorkflowStepStatus) bool { return again[st.Name] })
	for i := range s.Steps {
		st := &s.Steps[i]
		st.SubSteps = slices.DeleteFunc(st.SubSteps, func(sub oam.StepStatus) bool { return again[sub.Name] })
		if groups[st.Name] {
			st.Phase, st.Reason, st.Message = oam.StepRunning, "", ""
		}
	}
	s.Finished, s.Terminated, s.Suspend, s.SuspendState = false, false, false, ""
	s.Phase, s.Message, s.EndTime = "executing", "", metav1.Time{}
	return s, slices.Sorted(maps.Keys(again))
}

// after returns a step with all that follow it or depend on it, and the groups of which only some
// steps are among them.
func (p *Program) after(step string) (again, groups map[string]bool) {
	again, groups = map[string]bool{step: true}, map[string]bool{}
	spread := func(steps []Step, mode oam.WorkflowMode) {
		follows := false
		for i := range steps {
			s := &steps[i]
			if follows && mode == oam.WorkflowModeStep ||
				slices.ContainsFunc(p.needs(s), func(d string) bool { return again[d] || groups[d] }) {
				again[s.Name] = true
			}
			follows = follows || again[s.Name] || groups[s.Name]
		}
	}
	for before := -1; before != len(again)+len(groups); {
		before = len(again) + len(groups)
		spread(p.Steps, p.Mode.Steps)
		for i := range p.Steps {
			g := &p.Steps[i]
			for j := range g.Sub {
				if again[g.Name] {
					again[g.Sub[j].Name] = true
				}
			}
			spread(g.Sub, g.Mode)
			if slices.ContainsFunc(g.Sub, func(sub Step) bool { return again[sub.Name] }) {
				groups[g.Name] = true
			}
		}
	}
	maps.DeleteFunc(groups, func(name string, _ bool) bool { return again[name] })
	return again, groups
}
