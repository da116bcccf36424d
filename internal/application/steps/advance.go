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
	if debugs(w.input.Spec) {
		w.status.ContextBackend = &oam.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: contextName(a.Key.Name)}
	}
	obeyAgain(a, w, now)
	unsaved = c.obey(a, w, order)
	undecided := false
	evaluate := func(condition string, values map[string]any) (bool, error) {
		yes, err := render.Condition(c.Evaluators.Of(a.Key), condition, values)
		undecided = undecided || errors.Is(err, plan.ErrNotYet)
		return yes, err
	}
	// decide decides how the workflow continues. It returns nil while a condition is being evaluated;
	// the answer enqueues the Application.
	decide := func(results map[string]flow.Result) *flow.Decision {
		d := flow.Advance(&flow.Request{
			Program: w.program, Status: w.status, Outputs: f.Outputs, Results: results, Tries: w.tries, Resumed: f.Resumed,
			Held: f.Suspended, Paused: f.Paused, Context: w.context(), Now: now, Decide: evaluate,
			ID: func(step string) string { return plan.Hash([]byte(a.Key.String() + "/" + f.Run + "/" + step))[:10] },
		})
		if undecided {
			return nil
		}
		unsaved = unsaved || !sameOutputs(f.Outputs, d.Outputs) || !maps.Equal(f.Resumed, d.Resumed)
		w.status, f.Outputs, f.Resumed, w.tries, w.wake = d.Status, d.Outputs, d.Resumed, d.Tries, d.Wake
		return d
	}
	remembered := func() int {
		n := len(f.Units) + len(f.Made) + len(f.Outputs)
		for _, given := range f.Placed {
			n += len(given)
		}
		return n
	}
	before := remembered()
	d := decide(nil)
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
		if d = decide(results); !ended {
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
	if w.takeover {
		w.takeover, f.Seen, unsaved = false, w.status.DeepCopy(), true
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
	for st := range flow.StepsOf(s) {
		if st.Name == step {
			return st
		}
	}
	return nil
}

func sameOutputs(a, b map[string]json.RawMessage) bool {
	return maps.EqualFunc(a, b, records.SameJSON)
}
