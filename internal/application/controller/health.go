package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/sandbox"
)

// componentState is the state of one component.
type componentState struct {
	// applied is set if the component's objects are as the plan wants them. waits is set if the
	// component waits for another component.
	applied, waits  bool
	healthy         bool
	workloadHealthy bool
	// unknown is set while the state is still being evaluated.
	unknown bool
	message string
	details map[string]string
	traits  []oam.TraitStatus
}

// cachedHealth is a component's state and the versions of the objects that it was evaluated from.
type cachedHealth struct {
	versions string
	state    componentState
}

// stateOf evaluates a component's state from its live objects.
func (d *deployer) stateOf(a *state, i int) componentState {
	comp := &a.plan.Components[i]
	var versions strings.Builder
	var workload *object
	complete := true
	outputs := map[string]*object{}
	for _, at := range comp.Resources {
		r := &a.plan.Resources[at]
		there := d.targets.seen(r.Ref)
		if there == nil && r.ReadOnly {
			there, _, _ = d.others(a, r) // dispatch reports the error
		}
		if there == nil || there.renderHash != r.Hash && there.owner == a.key {
			// An object that is about to be updated says nothing about its new state.
			if r.Stage != oam.PostDispatch && !r.ReadOnly {
				complete = false
			}
			versions.WriteString("-")
		}
		if there != nil {
			fmt.Fprintf(&versions, "%d", there.version)
			if r.Output == "" {
				workload = there
			} else {
				outputs[r.Output] = there
			}
		}
		versions.WriteByte(',')
	}
	if known, ok := a.health[comp.Key()]; ok && known.versions == versions.String() {
		return known.state
	}
	state, busy := componentState{applied: true}, false
	live := &render.Live{Context: comp.Context, Properties: comp.Properties, Outputs: make(map[string][]byte, len(outputs))}
	if workload != nil {
		live.Output = workload.json()
	}
	for name, o := range outputs {
		live.Outputs[name] = o.json()
	}
	if complete {
		s, err := d.stateBy(a, comp.Template, *live)
		busy = errors.Is(err, errEvaluating)
		if err != nil {
			d.log.Debug("a component's state cannot be read", "application", a.key, "component", comp.Name, "error", err)
		}
		state.workloadHealthy, state.message, state.details = s.Healthy, s.Message, s.Details
		if len(comp.Notes) > 0 {
			state.details = map[string]string{"hooksNotRun": strings.Join(comp.Notes, ", ")}
			maps.Copy(state.details, s.Details)
		}
		if comp.Workload < 0 && slices.ContainsFunc(comp.Traits, func(t plan.Trait) bool { return t.Template.Definition.ManageWorkload }) {
			state.workloadHealthy = true // a trait manages the workload and reports its health
		}
	}
	state.healthy = state.workloadHealthy
	for n := range comp.Traits {
		t := &comp.Traits[n]
		live.Properties = t.Properties
		s, err := d.stateBy(a, t.Template, *live)
		busy = busy || errors.Is(err, errEvaluating)
		if err != nil {
			d.log.Debug("a trait's state cannot be read", "application", a.key, "component", comp.Name, "trait", t.Type, "error", err)
		}
		pending := t.Template.Definition.Stage == oam.PostDispatch && !state.workloadHealthy
		state.traits = append(state.traits, oam.TraitStatus{Type: t.Type, Healthy: s.Healthy && complete, Pending: pending, Message: s.Message, Details: s.Details})
		state.healthy = state.healthy && (s.Healthy || pending)
	}
	if busy {
		if known, ok := a.health[comp.Key()]; ok {
			return known.state // the last state, until the evaluation ends
		}
		state.unknown = true
		return state
	}
	a.health[comp.Key()] = cachedHealth{versions.String(), state}
	return state
}

// stateBy evaluates a definition's status section.
func (d *deployer) stateBy(a *state, t *render.Template, live render.Live) (render.State, error) {
	live.Run = d.evaluators.of(a.key)
	s, err := t.State(&live)
	var exceeded *sandbox.Exceeded
	var crashed *sandbox.Crashed
	if errors.As(err, &exceeded) || errors.As(err, &crashed) {
		return render.State{Message: err.Error()}, err
	}
	return s, err
}
