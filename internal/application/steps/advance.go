package steps

import (
	"encoding/json"
	"errors"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/render"
)

// StepsMax bounds the rounds of steps in one turn.
const StepsMax = 64

// Advance runs the workflow as far as possible in this turn. more means that the plan has changed
// and must be dispatched. unsaved means that the tracker must be stored before the status may be
// written.
func (c *Runner) Advance(a *deploy.State, w *Run, p *deploy.Progress, order Command) (more, unsaved bool) {
	f := a.Tracker.Flow
	now := c.Now()
	if w.status == nil {
		w.status = &oam.WorkflowStatus{AppRevision: w.run, Mode: w.program.ModeText(), StartTime: metav1.NewTime(now).Rfc3339Copy()}
	}
	unsaved = c.obey(a, w, order)
	undecided := false
	decide := func(condition string, values map[string]any) (bool, error) {
		yes, err := render.Condition(c.Evaluators.Of(a.Key), condition, values)
		undecided = undecided || errors.Is(err, plan.ErrNotYet)
		return yes, err
	}
	// look decides how the workflow continues. It returns nil while a condition is being evaluated;
	// the answer enqueues the Application.
	look := func(results map[string]flow.Result) *flow.Decision {
		d := flow.Advance(&flow.Look{
			Program: w.program, Status: w.status, Outputs: f.Outputs, Results: results, Tries: w.tries, Resumed: f.Resumed,
			Held: f.Suspended, Context: w.context(), Now: now, Decide: decide,
			ID: func(step string) string { return plan.Hash([]byte(a.Key.String() + "/" + f.Run + "/" + step))[:10] },
		})
		if undecided {
			return nil
		}
		unsaved = unsaved || !sameOutputs(f.Outputs, d.Outputs) || !maps.Equal(f.Resumed, d.Resumed)
		w.status, f.Outputs, f.Resumed, w.tries, w.wake = d.Status, d.Outputs, d.Resumed, d.Tries, d.Wake
		return d
	}
	remembered := func() int { return len(f.Units) + len(f.Made) + len(f.Outputs) }
	before := remembered()
	d := look(nil)
	for range StepsMax {
		if d == nil || len(d.Run) == 0 {
			break
		}
		results, ended := map[string]flow.Result{}, false
		for _, call := range d.Run {
			r := c.runStep(a, w, p, call, idOf(w.status, call.Step.Name))
			results[call.Step.Name] = r
			ended = ended || r.Outcome == flow.Succeeded || r.Outcome == flow.Failed
		}
		if d = look(results); !ended {
			break
		}
	}
	if !w.wake.IsZero() {
		a.WakeAfter(max(0, w.wake.Sub(now)))
	}
	p.Workflow = w.status
	p.Finished = w.status.Finished && !w.status.Terminated
	p.Settled = p.Finished || w.status.Finished && a.Plan.Policies.ContinueOnFailure
	if w.status.Finished {
		c.Watches.Release(a.Key, false)
	}
	unsaved = unsaved || before != remembered()
	if w.stale && w.keepOrder(f) {
		unsaved = true
	}
	if w.taken {
		w.taken, f.Seen, unsaved = false, w.status.DeepCopy(), true
	}
	return w.stale, unsaved
}

func idOf(s *oam.WorkflowStatus, step string) string {
	if st := stepOf(s, step); st != nil {
		return st.ID
	}
	return ""
}

// stepOf returns the status of a step or sub-step, or nil.
func stepOf(s *oam.WorkflowStatus, step string) *oam.StepStatus {
	if s == nil {
		return nil
	}
	for i := range s.Steps {
		if s.Steps[i].Name == step {
			return &s.Steps[i].StepStatus
		}
		for j := range s.Steps[i].SubSteps {
			if s.Steps[i].SubSteps[j].Name == step {
				return &s.Steps[i].SubSteps[j]
			}
		}
	}
	return nil
}

func sameOutputs(a, b map[string]json.RawMessage) bool {
	return maps.EqualFunc(a, b, records.SameJSON)
}
