package controller

import (
	"slices"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// progress is the state of an Application as one pass found it.
type progress struct {
	// planned is set if there is a plan. Without a plan the other fields mean nothing.
	planned bool
	// applied is the number of objects that are as the plan wants them. blocked is the number of
	// objects in clusters that cannot be reached.
	applied, blocked int
	// components holds the components' states, in the plan's order.
	components []componentState
	// finished is set once every component has been healthy since the spec last changed.
	finished bool
	// settled is like finished, but ignores objects in clusters that cannot be reached.
	settled bool
	// workflow is the workflow's status, for an Application that is deployed in steps.
	workflow *oam.WorkflowStatus
	// problems lists what prevents objects from reaching their desired state.
	problems []string
}

func (p *progress) problem(err error) {
	if text := err.Error(); !slices.Contains(p.problems, text) {
		p.problems = append(p.problems, text)
	}
}

// state returns the state of the component with this key, or nil if the plan does not have it.
func (p *progress) state(in *plan.Plan, key string) *componentState {
	for i := range in.Components {
		if in.Components[i].Key() == key {
			return &p.components[i]
		}
	}
	return nil
}
