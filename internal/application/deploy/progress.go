package deploy

import (
	"slices"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// Progress is the state of an Application as one turn found it.
type Progress struct {
	// Planned is set if there is a plan. Without a plan the other fields mean nothing.
	Planned bool
	// Applied is the number of objects that are as the plan wants them. Blocked is the number of
	// objects in clusters that cannot be reached.
	Applied, Blocked int
	// Components holds the components' states, in the plan's order.
	Components []ComponentState
	// Finished is set once every component has been healthy since the spec last changed.
	Finished bool
	// Settled is like Finished, but ignores objects in clusters that cannot be reached.
	Settled bool
	// Workflow is the workflow's status, for an Application that is deployed in steps.
	Workflow *oam.WorkflowStatus
	// Problems lists what prevents objects from reaching their desired state. Errors has those that
	// are not about a cluster or an API that cannot be reached, by object.
	Problems []string
	Errors   map[plan.Ref]string
}

func (p *Progress) problem(err error) {
	if text := err.Error(); !slices.Contains(p.Problems, text) {
		p.Problems = append(p.Problems, text)
	}
}

// failed records the error of an object of a component; state is nil if it belongs to none.
func (p *Progress) failed(state *ComponentState, ref plan.Ref, err string) {
	if err == "" {
		return
	}
	if p.Errors == nil {
		p.Errors = map[plan.Ref]string{}
	}
	p.Errors[ref] = err
	if state != nil && state.Problem == "" {
		state.Problem = err
	}
}

// State returns the state of the component with this key, or nil if the plan does not have it.
func (p *Progress) State(in *plan.Plan, key string) *ComponentState {
	for i := range in.Components {
		if in.Components[i].Key() == key {
			return &p.Components[i]
		}
	}
	return nil
}
