package plan

import (
	"slices"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Dependencies returns, for each component, the components that it depends on: those in dependsOn
// and those whose outputs it takes as inputs.
func Dependencies(spec *oam.ApplicationSpec) map[string][]string {
	gives := map[string]string{}
	for i := range spec.Components {
		for _, o := range spec.Components[i].Outputs {
			gives[o.Name] = spec.Components[i].Name
		}
	}
	out := map[string][]string{}
	for i := range spec.Components {
		c := &spec.Components[i]
		on := slices.Clone(c.DependsOn)
		for _, in := range c.Inputs {
			if from, ok := gives[in.From]; ok && from != c.Name {
				on = append(on, from)
			}
		}
		out[c.Name] = on
	}
	return out
}
