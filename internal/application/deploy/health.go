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
	var outputs []output
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
				outputs = append(outputs, output{trait: r.TraitIndex, name: r.Output, object: there})
			}
		}
		versions.WriteByte(',')
	}
	if known, ok := a.health[comp.Key()]; ok && known.versions == versions.String() {
		return known.state
	}
	state, busy := ComponentState{Applied: true}, false
	for i := range outputs {
		outputs[i].data = outputs[i].object.JSON()
	}
	live := &render.Live{Context: comp.Context, Properties: comp.Properties, Outputs: outputsFor(-1, outputs)}
	if workload != nil {
		live.Output = workload.JSON()
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
		live.Properties, live.Outputs = t.Properties, outputsFor(n, outputs)
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

// output is a live auxiliary object of a component: its name in outputs, and the index of the trait
// that made it, or -1.
type output struct {
	trait  int
	name   string
	object *objects.Object
	data   []byte
}

// outputsFor returns the auxiliary objects of a component by their names, as a trait sees them, or as
// the component does if trait is -1. Of several with one name it sees its own, or else the
// component's, or else the last trait's.
func outputsFor(trait int, all []output) map[string][]byte {
	seen := make(map[string][]byte, len(all))
	for _, visible := range []func(of int) bool{
		func(of int) bool { return of >= 0 }, func(of int) bool { return of == -1 }, func(of int) bool { return of == trait },
	} {
		for _, o := range all {
			if visible(o.trait) {
				seen[o.name] = o.data
			}
		}
	}
	return seen
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
