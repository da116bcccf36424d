package deploy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/evaluation"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/sandbox"
)

// waitsForWorkload is the message of a trait of the stage PostDispatch until its component is healthy.
const waitsForWorkload = "Waiting for component to be healthy"

// ComponentState is the state of one component.
type ComponentState struct {
	// Applied is set if the component's objects are as the plan wants them. Waits is set if the
	// component waits for another component.
	Applied, Waits  bool
	Healthy         bool
	WorkloadHealthy bool
	// Unknown is set while the state is still being evaluated.
	Unknown bool
	// Problem says why the component does not come to its desired state, if that is known. Failed
	// is set once it has been tried as often as a step is.
	Problem string
	Failed  bool
	Message string
	Details map[string]string
	Traits  []oam.TraitStatus
}

// cachedHealth is a component's state and the versions of the objects from which it was evaluated.
type cachedHealth struct {
	versions string
	state    ComponentState
}

// stateOf evaluates a component's state from its live objects.
func (d *Deployer) stateOf(a *State, i int) ComponentState {
	comp := &a.Plan.Components[i]
	if comp.Err != nil {
		return ComponentState{Message: comp.Err.Err.Error(), Problem: comp.Err.Err.Error()}
	}
	var versions strings.Builder
	var workload *objects.Object
	complete, dispatched := true, false // dispatched: objects of the stage PostDispatch exist
	outputs := map[string]*objects.Object{}
	for _, at := range comp.Resources {
		r := &a.Plan.Resources[at]
		there := d.Targets.Seen(r.Ref)
		if there == nil && r.ReadOnly {
			there, _, _ = d.others(a, r) // Dispatch reports the error
		}
		if there == nil || there.RenderHash != r.Hash && there.Owner == a.Key {
			// An object that is about to be updated says nothing about its new state.
			if r.Stage != oam.PostDispatch && !r.ReadOnly {
				complete = false
			}
			versions.WriteString("-")
		}
		if there != nil {
			dispatched = dispatched || r.Stage == oam.PostDispatch
			fmt.Fprintf(&versions, "%d", there.Version)
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
	state, busy := ComponentState{Applied: true}, false
	live := &render.Live{Context: comp.Context, Properties: comp.Properties, Outputs: make(map[string][]byte, len(outputs))}
	if workload != nil {
		live.Output = workload.JSON()
	}
	for name, o := range outputs {
		live.Outputs[name] = o.JSON()
	}
	if complete {
		s, err := d.stateBy(a, comp.Template, *live)
		busy = errors.Is(err, evaluation.ErrPending)
		if err != nil {
			d.Log.Debug("a component's state cannot be read", "application", a.Key, "component", comp.Name, "error", err)
		}
		state.WorkloadHealthy, state.Message, state.Details = s.Healthy, s.Message, s.Details
		if len(comp.Notes) > 0 {
			state.Details = map[string]string{"hooksNotRun": strings.Join(comp.Notes, ", ")}
			maps.Copy(state.Details, s.Details)
		}
		if comp.Workload < 0 && slices.ContainsFunc(comp.Traits, func(t plan.Trait) bool { return t.Template.Definition.ManageWorkload }) {
			state.WorkloadHealthy = true // a trait manages the workload and reports its health
		}
	}
	state.Healthy = state.WorkloadHealthy
	for n := range comp.Traits {
		t := &comp.Traits[n]
		if comp.Late != nil && comp.Late.Waiting && slices.Contains(comp.Late.Traits, n) {
			waits := oam.TraitStatus{Type: t.Type, Pending: !state.WorkloadHealthy, Message: "it is made from live objects that do not exist yet"}
			if waits.Pending {
				waits.Message = waitsForWorkload
			} else if comp.Late.Err != nil {
				waits.Message = "it cannot be made yet: " + comp.Late.Err.Error()
			}
			state.Traits = append(state.Traits, waits)
			state.Healthy = state.Healthy && waits.Pending
			if state.WorkloadHealthy {
				state.Message = "trait " + t.Type + ": " + waits.Message
			}
			continue
		}
		if t.Template.Definition.Stage == oam.PostDispatch && !state.WorkloadHealthy && !dispatched {
			state.Traits = append(state.Traits, oam.TraitStatus{Type: t.Type, Pending: true, Message: waitsForWorkload})
			continue
		}
		live.Properties = t.Properties
		s, err := d.stateBy(a, t.Template, *live)
		busy = busy || errors.Is(err, evaluation.ErrPending)
		if err != nil {
			d.Log.Debug("a trait's state cannot be read", "application", a.Key, "component", comp.Name, "trait", t.Type, "error", err)
		}
		state.Traits = append(state.Traits, oam.TraitStatus{Type: t.Type, Healthy: s.Healthy && complete, Message: s.Message, Details: s.Details})
		state.Healthy = state.Healthy && s.Healthy
	}
	if busy {
		if known, ok := a.health[comp.Key()]; ok {
			return known.state // the last state, until the evaluation ends
		}
		state.Unknown = true
		return state
	}
	a.health[comp.Key()] = cachedHealth{versions.String(), state}
	return state
}

// stateBy evaluates a definition's status section.
func (d *Deployer) stateBy(a *State, t *render.Template, live render.Live) (render.State, error) {
	live.Run = d.Evaluators.Of(a.Key)
	s, err := t.State(&live)
	var exceeded *sandbox.Exceeded
	var crashed *sandbox.Crashed
	switch {
	case errors.As(err, &exceeded) || errors.As(err, &crashed):
		return render.State{Message: err.Error()}, err
	case err != nil && !s.Healthy && s.Message == "" && !errors.Is(err, evaluation.ErrPending):
		s.Message = "its health cannot be read: " + err.Error()
	}
	return s, err
}
