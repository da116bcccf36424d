package steps

import (
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
)

// deploy returns the part of a unit. It creates the part if there is none, and otherwise plans it
// again if needed.
func (c *Runner) deploy(a *deploy.State, w *Run, key string, unit plan.DeployUnit) *deployedUnit {
	for _, p := range w.parts {
		if p.key == key {
			if p.plan == nil {
				p.unit = unit // the unit may have been unknown before
			}
			c.replanPart(a, w, p)
			return p
		}
	}
	p := &deployedUnit{key: key, unit: unit}
	w.parts = append(w.parts, p)
	c.replanPart(a, w, p)
	return p
}

// replanPart makes a part's plan if there is none, or if inputs that components wait for have
// arrived.
func (c *Runner) replanPart(a *deploy.State, w *Run, p *deployedUnit) {
	if p.plan != nil && len(p.waits) == 0 && len(p.plan.Broken()) == 0 {
		return
	}
	spec, err := p.unit.Spec(w.input.Spec)
	if err != nil {
		p.err = &plan.Error{Stage: plan.Policy, Err: err}
		return
	}
	at, err := c.placed(a, w, p, spec)
	if err != nil {
		p.err = err
		return
	}
	// Policies that make objects are deployed once (policiesPart), not with every step.
	spec.Policies = slices.DeleteFunc(spec.Policies, func(p oam.AppPolicy) bool { return !plan.BuiltIn(p.Type) })
	data, err := inputsOf(spec, at)
	if err != nil {
		p.err = err
		return
	}
	changed := plan.Hash(data) != p.inputs
	if changed || p.plan == nil && p.err == nil || retried(p.err) || slices.ContainsFunc(p.plan.Broken(), temporary) {
		p.inputs = plan.Hash(data)
		in := w.input
		in.Spec, in.At, in.LeavesTerraform = spec, at, p.unit.LeavesTerraform
		made, err := c.Make(a, &in)
		p.err = err
		if err == nil && (changed || !plan.Same(made, p.plan)) {
			p.plan, w.stale = made, true
		}
	}
}

// temporary reports whether a component without objects may get some without a change of the
// Application.
func temporary(err *plan.Error) bool { return retried(err) }

// retried reports whether a planning error may go away without a change of the Application.
func retried(err error) bool {
	if none := objects.ErrNoKind(""); errors.As(err, &none) {
		return true // the kind may be defined later, also by a step of the same workflow
	}
	return errors.Is(err, definitions.ErrNotFound) || errors.Is(err, plan.ErrNoCluster) || errors.Is(err, plan.ErrNotYet) || errors.Is(err, deploy.ErrChart) || errors.Is(err, deploy.ErrAskedAgain)
}

// placed sets the inputs of the unit's components, and leaves out those that wait for inputs. If the
// unit is deployed to several placements, their components differ and are returned.
func (c *Runner) placed(a *deploy.State, w *Run, p *deployedUnit, spec *oam.ApplicationSpec) (map[plan.Placement][]oam.Component, error) {
	p.waits = nil
	if !slices.ContainsFunc(spec.Components, func(c oam.Component) bool { return len(c.Inputs) > 0 }) {
		return nil, nil
	}
	in := w.input
	in.Spec = spec
	places, err := plan.Placements(&in)
	if err != nil {
		return nil, &plan.Error{Stage: plan.Policy, Err: err}
	}
	p.several = len(places) > 1
	at := make(map[plan.Placement][]oam.Component, len(places))
	for _, place := range places {
		ready, waits, err := withInputs(spec.Components, valuesAt(a.Tracker.Flow, w.context(), spec.Components, place, len(places) > 1))
		if err != nil {
			return nil, &plan.Error{Stage: plan.Parse, Err: err}
		}
		at[place] = ready
		for _, name := range waits {
			if !slices.Contains(p.waits, name) {
				p.waits = append(p.waits, name)
			}
		}
	}
	if len(places) == 1 { // with the inputs, it is like any other
		spec.Components = at[places[0]]
		return nil, nil
	}
	return at, nil
}

// valuesAt returns a function that gives the value of an input of a component at a placement: what is
// given at its place or, unless a component of the same unit will give it there, what is given at all.
// several is set if the components are deployed to several placements.
func valuesAt(f *records.Flow, context map[string]any, components []oam.Component, at plan.Placement, several bool) func(replica, from string) (any, bool) {
	context = maps.Clone(context)
	context["cluster"] = at.ClusterName()
	return func(replica, from string) (any, bool) {
		for _, key := range []string{at.Key(replica), at.Key("")} {
			if v, ok := flow.Input(f.Placed[key], nil, from); ok {
				return v, true
			}
		}
		if slices.ContainsFunc(components, func(c oam.Component) bool {
			here := c.ReplicaKey == replica && replica != "" || c.ReplicaKey == "" && several
			return here && givesTo(&c, from)
		}) {
			return nil, false
		}
		return flow.Input(f.Outputs, context, from)
	}
}

// givesTo reports whether an input is an output of a component, or a part of one.
func givesTo(c *oam.Component, from string) bool {
	return slices.ContainsFunc(c.Outputs, func(o oam.StepOutput) bool { return from == o.Name || strings.HasPrefix(from, o.Name+".") })
}

// inputsOf returns what identifies the components of a unit with their inputs.
func inputsOf(spec *oam.ApplicationSpec, at map[plan.Placement][]oam.Component) ([]byte, error) {
	if at == nil {
		return json.Marshal(spec.Components)
	}
	components := map[string][]oam.Component{}
	for place, list := range at {
		components[place.Key("")] = list
	}
	return json.Marshal(components)
}

// withInputs returns the components whose inputs are all available, with the inputs filled in, and
// the inputs that the other components wait for. A component that depends on a waiting component
// also waits.
func withInputs(components []oam.Component, value func(replica, from string) (any, bool)) (ready []oam.Component, waits []string, _ error) {
	waiting := map[string]bool{}
	for i := range components {
		for _, in := range components[i].Inputs {
			if _, ok := value(components[i].ReplicaKey, in.From); !ok {
				waiting[components[i].Name] = true
				waits = append(waits, in.From)
			}
		}
	}
	for again := true; again; {
		again = false
		for i := range components {
			name := components[i].Name
			if !waiting[name] && slices.ContainsFunc(components[i].DependsOn, func(d string) bool { return waiting[d] }) {
				waiting[name], again = true, true
			}
		}
	}
	for i := range components {
		comp := components[i]
		if waiting[comp.Name] {
			continue
		}
		if len(comp.Inputs) > 0 {
			properties, err := flow.WithInputs(plan.RawOf(comp.Properties), comp.Inputs, func(from string) (any, bool) { return value(comp.ReplicaKey, from) })
			if err != nil {
				return nil, nil, fmt.Errorf("component %s: %w", comp.Name, err)
			}
			comp.Properties, comp.Inputs = &runtime.RawExtension{Raw: properties}, nil
		}
		ready = append(ready, comp)
	}
	return ready, waits, nil
}

// resume restores the parts and objects that have been deployed so far, after a restart of the
// manager.
func (c *Runner) resume(a *deploy.State, w *Run) {
	f := a.Tracker.Flow
	for _, key := range f.Parts {
		if unit, ok := f.Units[key]; ok {
			c.deploy(a, w, key, unit)
		} else if s := w.program.Step(key); s != nil {
			c.resumeStep(a, w, s, true)
		}
	}
	for st := range flow.StepsOf(w.status) {
		if s := w.program.Step(st.Name); s != nil && st.Phase != oam.StepPending && st.Phase != oam.StepSkipped {
			c.resumeStep(a, w, s, f.Resumed[s.Name] || flow.Ended(st))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(f.Units)) {
		c.deploy(a, w, key, f.Units[key])
	}
	for _, ref := range slices.Sorted(maps.Keys(f.Made)) {
		data, ok := f.Taken[ref]
		if !ok {
			data, ok = a.Tracker.Applied[ref]
		}
		if ok {
			for i := range a.Tracker.Resources {
				if m := &a.Tracker.Resources[i]; records.RefKey(records.RefOf(m)) == ref {
					r := plan.Resource{Ref: records.RefOf(m), JSON: data, Hash: plan.Hash(data), Step: f.Made[ref], TraitIndex: -1}
					w.rules.Treat(&r)
					w.applied = append(w.applied, r)
				}
			}
		}
	}
}

// resumeStep restores the unit that a step has deployed. consented is set if the step no longer
// waits for a user's consent.
func (c *Runner) resumeStep(a *deploy.State, w *Run, s *flow.Step, consented bool) {
	if !nativeStep(s.Type) || slices.ContainsFunc(w.parts, func(p *deployedUnit) bool { return p.key == s.Name }) {
		return
	}
	outputs, context := a.Tracker.Flow.Outputs, w.context()
	value := func(from string) (any, bool) { return flow.Input(outputs, context, from) }
	properties, err := flow.WithInputs(plan.RawOf(s.Properties), s.Inputs, value)
	var unit plan.DeployUnit
	var pause *flow.Pause
	if err == nil {
		unit, pause, err = c.nativeUnit(w, s, properties)
	}
	switch {
	case err != nil: // what it has deployed is unknown
		w.parts = append(w.parts, &deployedUnit{key: s.Name, err: err})
	case pause == nil || consented:
		c.deploy(a, w, s.Name, unit)
	}
}
