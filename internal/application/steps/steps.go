package steps

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/definitions"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/render"
)

// Types of the steps that are implemented here and need no template.
const (
	stepDeploy         = "deploy"
	stepApplyComponent = "apply-component"
)

// stepDeploy2Env is the type of the steps of Applications with an env-binding policy and without a
// workflow.
const stepDeploy2Env = "deploy2env"

func nativeStep(stepType string) bool {
	return stepType == stepDeploy || stepType == stepApplyComponent
}

// runStep runs a step as far as possible in this turn and returns its result.
func (c *Runner) runStep(a *deploy.State, w *Run, p *deploy.Progress, call flow.Call, id string) flow.Result {
	if nativeStep(call.Step.Type) {
		unit, pause, err := c.nativeUnit(w, call.Step, call.Properties)
		switch {
		case errors.Is(err, definitions.ErrNotFound):
			a.Follows = true
			return flow.Result{Outcome: flow.Erred, Message: err.Error()}
		case err != nil:
			return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonParameter, Message: err.Error()}
		case pause != nil && !call.Resumed:
			return flow.Result{Outcome: flow.Suspending, Pause: *pause}
		}
		if debugs(w.input.Spec) {
			if err := show(c, a, w, p, call.Step.Name, id, &render.StepState{Shown: fmt.Sprintf(`{"parameter": %s}`, cmp.Or(string(call.Properties), "{}"))}); err != nil {
				return flow.Result{Outcome: flow.Erred, Message: err.Error()}
			}
		}
		r, part := c.unitResult(a, w, p, call.Step.Name, unit)
		if r.Outcome == flow.Succeeded && len(call.Step.Outputs) > 0 {
			r.Outputs, err = c.unitOutputs(a, w, part, call.Step.Outputs)
			if errors.Is(err, plan.ErrNotYet) {
				return flow.Result{Outcome: flow.Running}
			}
			if err != nil {
				return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonOutput, Message: err.Error()}
			}
		}
		return r
	}
	return c.runTemplate(a, w, p, call, id)
}

// nativeUnit returns the unit that a deploy or an apply-component step deploys, and the pause if
// the step waits for a user's consent first.
func (c *Runner) nativeUnit(w *Run, s *flow.Step, properties []byte) (plan.DeployUnit, *flow.Pause, error) {
	if s.Type == stepApplyComponent {
		var in struct {
			Component string `json:"component"`
			Cluster   string `json:"cluster,omitempty"`
			Namespace string `json:"namespace,omitempty"`
		}
		if err := plan.Strict(properties, &in); err != nil {
			return plan.DeployUnit{}, nil, err
		}
		if in.Component == "" {
			return plan.DeployUnit{}, nil, errors.New("properties: component must be given")
		}
		return plan.DeployUnit{Only: []string{in.Component}, Cluster: in.Cluster, Namespace: in.Namespace}, nil, nil
	}
	in := struct {
		Auto                     *bool    `json:"auto,omitempty"`
		Policies                 []string `json:"policies,omitempty"`
		Parallelism              int      `json:"parallelism,omitempty"`
		IgnoreTerraformComponent *bool    `json:"ignoreTerraformComponent,omitempty"`
	}{}
	if err := plan.Strict(properties, &in); err != nil {
		return plan.DeployUnit{}, nil, err
	}
	policies, err := c.chosen(w, in.Policies)
	if err != nil {
		return plan.DeployUnit{}, nil, err
	}
	var pause *flow.Pause
	if in.Auto != nil && !*in.Auto {
		pause = &flow.Pause{Message: "it deploys when it is resumed"}
	}
	leaves := in.IgnoreTerraformComponent == nil || *in.IgnoreTerraformComponent
	return plan.DeployUnit{Policies: policies, LeavesTerraform: leaves}, pause, nil
}

// chosen returns the policies with these names: the Application's own, or shared Policies.
func (c *Runner) chosen(w *Run, names []string) ([]oam.AppPolicy, error) {
	var out []oam.AppPolicy
	for _, name := range names {
		p := w.policies[name]
		if p == nil {
			shared, ok := c.Definitions.SharedPolicies.Get(w.input.Namespace, name)
			if !ok {
				return nil, fmt.Errorf("policy %s: neither the application has it nor the namespace %s: %w", name, w.input.Namespace, definitions.ErrNotFound)
			}
			p = &oam.AppPolicy{Name: name, Type: shared.Type, Properties: shared.Properties}
			w.policies[name] = p
		}
		out = append(out, *p)
	}
	return out, nil
}

// unitResult deploys a unit and returns the result so far.
func (c *Runner) unitResult(a *deploy.State, w *Run, p *deploy.Progress, key string, unit plan.DeployUnit) (flow.Result, *deployedUnit) {
	part := c.deploy(a, w, key, unit)
	if err := part.err; err != nil {
		var e *plan.Error
		reason := oam.StepReasonRendering
		if errors.As(err, &e) && e.Stage != plan.Render {
			reason = oam.StepReasonParameter
		}
		switch {
		case errors.Is(err, plan.ErrNotYet):
			a.Follows = true
			return flow.Result{Outcome: flow.Acting}, part
		case retried(err):
			a.Follows = true
			return flow.Result{Outcome: flow.Erred, Message: err.Error()}, part
		}
		return flow.Result{Outcome: flow.Failed, Reason: reason, Message: err.Error()}, part
	}
	if part.plan == nil || !w.merged[part.plan] {
		return flow.Result{Outcome: flow.Acting}, part // dispatch comes first
	}
	if failure := partFailure(a, p, part); failure != "" {
		return flow.Result{Outcome: flow.Erred, Message: failure}, part
	}
	waits := ""
	for i := range part.plan.Components {
		comp := &part.plan.Components[i]
		state := p.State(a.Plan, comp.Key())
		if state == nil {
			return flow.Result{Outcome: flow.Running}, part
		}
		if !state.Applied || !state.Healthy && !unit.Unwatched {
			if waits == "" {
				waits = "component " + comp.Name + " is not healthy"
				if state.Message != "" {
					waits += ": " + state.Message
				}
			}
			continue
		}
		// Other components may wait for this component's outputs.
		f, several := a.Tracker.Flow, part.several || comp.Context.ReplicaKey != "" || part.plan.Several(comp.Name)
		outputs := slices.DeleteFunc(slices.Clone(w.outputsOf(comp.Name)), func(o oam.StepOutput) bool {
			return f.Outputs[o.Name] != nil && (!several || f.Placed[comp.Place()][o.Name] != nil)
		})
		if len(outputs) == 0 {
			continue
		}
		values, err := c.componentOutputs(a, w, comp.Key(), outputs)
		if errors.Is(err, plan.ErrNotYet) {
			return flow.Result{Outcome: flow.Running}, part
		}
		if err != nil {
			return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonOutput, Message: err.Error()}, part
		}
		give(f, comp.Place(), several, values)
	}
	if len(part.waits) > 0 {
		c.replanPart(a, w, part)
		if part.err != nil {
			return c.unitResult(a, w, p, key, unit)
		}
		if len(part.waits) > 0 && waits == "" {
			return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonInput, Message: "nothing gives " + strings.Join(part.waits, ", ")}, part
		}
		return flow.Result{Outcome: flow.Running, Message: waits}, part
	}
	if waits != "" {
		return flow.Result{Outcome: flow.Running, Message: waits}, part
	}
	message := ""
	if len(part.plan.Left) > 0 {
		message = "it leaves out " + strings.Join(part.plan.Left, ", ") + ": ignoreTerraformComponent is true; the step apply-component deploys them"
	}
	return flow.Result{Outcome: flow.Succeeded, Message: message}, part
}

// give records what a component has given at a place. For everything that has no place itself, the
// first place of several counts.
func give(f *records.Flow, place string, several bool, values map[string]json.RawMessage) {
	if f.Outputs == nil {
		f.Outputs = map[string]json.RawMessage{}
	}
	if !several {
		maps.Copy(f.Outputs, values)
		return
	}
	if f.Placed == nil {
		f.Placed = map[string]map[string]json.RawMessage{}
	}
	if f.Placed[place] == nil {
		f.Placed[place] = map[string]json.RawMessage{}
	}
	maps.Copy(f.Placed[place], values)
	for name, v := range values {
		if f.Outputs[name] == nil {
			f.Outputs[name] = v
		}
	}
}

// outputsOf returns the outputs that a component declares.
func (w *Run) outputsOf(component string) []oam.StepOutput {
	for i := range w.input.Spec.Components {
		if w.input.Spec.Components[i].Name == component {
			return w.input.Spec.Components[i].Outputs
		}
	}
	return nil
}

// partFailure returns why a component of a part has no objects, or why an object is not as the part
// wants it, or "".
func partFailure(a *deploy.State, p *deploy.Progress, part *deployedUnit) string {
	for _, err := range part.plan.Broken() {
		return err.Error()
	}
	for i := range part.plan.Resources {
		ref := part.plan.Resources[i].Ref
		if f := cmp.Or(a.Writes.Failure(records.RefKey(ref)), p.Errors[ref]); f != "" {
			return f
		}
	}
	return ""
}

// unitOutputs returns the outputs of a step that deploys a unit. They are those that its components
// gave already, or otherwise those read from the objects of its first component.
func (c *Runner) unitOutputs(a *deploy.State, w *Run, part *deployedUnit, outputs []oam.StepOutput) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	for _, o := range outputs {
		if v, ok := a.Tracker.Flow.Outputs[o.Name]; ok {
			out[o.Name] = v
		}
	}
	if len(out) == len(outputs) || len(part.plan.Components) == 0 {
		return out, nil
	}
	return c.componentOutputs(a, w, part.plan.Components[0].Key(), outputs)
}

// componentOutputs evaluates outputs on the live objects of a component.
func (c *Runner) componentOutputs(a *deploy.State, w *Run, key string, outputs []oam.StepOutput) (map[string]json.RawMessage, error) {
	values := w.objects(c.Targets, a.Plan, key)
	out := map[string]json.RawMessage{}
	for _, o := range outputs {
		v, err := render.ValueFrom(c.Evaluators.Of(a.Key), o.ValueFrom, values)
		if err != nil {
			return nil, fmt.Errorf("output %s: %w", o.Name, err)
		}
		out[o.Name] = v
	}
	return out, nil
}

// objects returns the live objects of a component, as output and outputs, and the context.
func (w *Run) objects(targets *objects.Targets, in *plan.Plan, key string) map[string]any {
	outputs := map[string]any{}
	values := map[string]any{"outputs": outputs, "context": w.context()}
	for i := range in.Components {
		comp := &in.Components[i]
		if comp.Key() != key {
			continue
		}
		for _, at := range comp.Resources {
			r := &in.Resources[at]
			there := objects.Map(targets.Seen(r.Ref))
			if there == nil {
				continue
			}
			if r.Output == "" {
				values["output"] = there
			} else {
				outputs[r.Output] = there
			}
		}
	}
	return values
}

// runTemplate runs a step that has a definition until the step waits or ends.
func (c *Runner) runTemplate(a *deploy.State, w *Run, p *deploy.Progress, call flow.Call, id string) flow.Result {
	name := call.Step.Name
	run := c.Evaluators.Of(a.Key)
	template, err := definitions.Templates{Library: c.Definitions, Run: run}.Step(w.input.Namespace, call.Step.Type)
	if errors.Is(err, plan.ErrNotYet) {
		return flow.Result{Outcome: flow.Acting}
	}
	if err != nil {
		a.Follows = a.Follows || errors.Is(err, definitions.ErrNotFound)
		return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonRendering, Message: err.Error()}
	}
	application, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&oam.Application{Spec: *w.input.Spec})
	if err != nil {
		return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonRendering, Message: err.Error()}
	}
	req := &render.StepRequest{
		Properties: call.Properties, Context: w.stepContext(name, id), Answers: map[string]render.Answer{}, Resumed: call.Resumed,
		Outputs: call.Step.Outputs, Debug: debugs(w.input.Spec), Run: run,
	}
	req.Context.Application = application
	for range actionsMax {
		s, err := template.Step(req)
		if errors.Is(err, plan.ErrNotYet) {
			return flow.Result{Outcome: flow.Acting}
		}
		if err != nil {
			return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonRendering, Message: err.Error()}
		}
		for _, line := range s.Logs {
			c.Log.Debug("a step says", "application", a.Key, "step", name, "text", line)
		}
		if req.Debug && s.Outcome != render.StepActs {
			if err := show(c, a, w, p, name, id, s); err != nil {
				return flow.Result{Outcome: flow.Erred, Message: err.Error()}
			}
		}
		switch s.Outcome {
		case render.StepDone:
			return flow.Result{Outcome: flow.Succeeded, Message: s.Message, Outputs: s.Outputs}
		case render.StepFails:
			return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonAction, Message: s.Message}
		case render.StepBreaks:
			return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonTerminate, Message: s.Message}
		case render.StepSuspends:
			return flow.Result{Outcome: flow.Suspending, Pause: flow.Pause{Message: s.Message, Duration: s.Duration}}
		case render.StepWaits:
			c.repeat(a, w, name)
			return flow.Result{Outcome: flow.Running, Message: s.Message}
		}
		x := &action{&s.Action, c, a, w, p, name}
		answer, ready, err := x.act()
		if err != nil {
			delete(w.answers, name)
			return flow.Result{Outcome: flow.Erred, Message: s.Action.Key + ": " + err.Error()}
		}
		if !ready {
			return flow.Result{Outcome: flow.Acting, Message: s.Message}
		}
		req.Answers[s.Action.Key] = answer
	}
	return flow.Result{Outcome: flow.Failed, Reason: oam.StepReasonRendering, Message: "it has too many actions"}
}

// actionsMax bounds the actions of one step in one turn.
const actionsMax = 512

// repeatFirst is the first delay after which a waiting step's actions are repeated.
const repeatFirst = 2 * deploy.RepeatFirst

// repeat schedules the repetition of a waiting step's actions, because no watch shows their results.
func (c *Runner) repeat(a *deploy.State, w *Run, step string) {
	for _, x := range w.answers[step] {
		c.Repeat(a, x, repeatFirst)
	}
}

// once carries out a step's action once, on its own goroutine, or again if it is to be repeated. It
// returns the answer when there is one. do must not read the Application's State.
func (x *action) once(do func() (render.Answer, error)) (render.Answer, bool, error) {
	if x.w.answers[x.step] == nil {
		x.w.answers[x.step] = deploy.Answers{}
	}
	known := x.r.Ask(x.a, x.w.answers[x.step], x.Key, func() (any, error) { return do() })
	if !known.Known {
		return render.Answer{}, false, nil
	}
	answer, _ := known.Value.(render.Answer)
	return answer, true, known.Err
}
