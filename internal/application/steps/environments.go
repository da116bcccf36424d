package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/definitions"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// deployEnvironment deploys the Application to an environment of an env-binding policy.
func (x *action) deployEnvironment() (render.Answer, bool, error) {
	unit, err := environment(x.r, x.w, text(x.Params, "policy"), text(x.Params, "env"))
	if err != nil {
		return render.Answer{}, false, err
	}
	_, ready, err := x.unit(unit)
	return render.Answer{}, ready, err
}

// cloudResources answers with the components of an environment that are made of configurations of
// Terraform, and with the placements of the environment.
func (x *action) cloudResources() (render.Answer, bool, error) {
	inputs, _ := x.Params["inputs"].(map[string]any)
	unit, err := environment(x.r, x.w, text(inputs, "policy"), text(inputs, "env"))
	if err != nil {
		return render.Answer{}, false, err
	}
	spec, err := unit.Spec(x.w.input.Spec)
	if err != nil {
		return render.Answer{}, false, err
	}
	defs := definitions.Templates{Library: x.r.Definitions, Run: x.r.Evaluators.Of(x.a.Key)}
	resources := []plan.CloudResource{}
	for i := range spec.Components {
		template, err := defs.Component(x.a.Key.Namespace, spec.Components[i].Type)
		if errors.Is(err, plan.ErrNotYet) {
			return render.Answer{}, false, nil
		}
		if err != nil {
			return render.Answer{}, false, err
		}
		if !template.Definition.Terraform {
			continue
		}
		r, err := plan.CloudResourceOf(&spec.Components[i], text(inputs, "env"), x.a.Key.Namespace)
		if err != nil {
			return render.Answer{}, false, err
		}
		resources = append(resources, *r)
	}
	in := x.w.input
	in.Spec = spec
	places, err := plan.Placements(&in)
	if err != nil {
		return render.Answer{}, false, err
	}
	decisions := []any{}
	for _, at := range places {
		decisions = append(decisions, map[string]any{"cluster": at.ClusterName(), "namespace": at.Namespace})
	}
	list, err := asValue(resources)
	return render.Answer{Returns: map[string]any{"outputs": map[string]any{"components": list, "decisions": decisions}}}, true, err
}

// asValue returns v as decoded JSON.
func asValue(v any) (out any, _ error) {
	data, err := json.Marshal(v)
	if err == nil {
		err = kjson.Unmarshal(data, &out)
	}
	return out, err
}

// environment returns the unit that deploys the Application to an environment of an env-binding
// policy: of the Application's first one, if policy is empty.
func environment(c *Runner, w *Run, policy, env string) (plan.DeployUnit, error) {
	if policy == "" {
		policies := w.input.Spec.Policies
		i := slices.IndexFunc(policies, func(p oam.AppPolicy) bool { return p.Type == plan.TypeEnvBinding })
		if i < 0 {
			return plan.DeployUnit{}, errors.New("the application has no policy of the type env-binding")
		}
		policy = policyName(&policies[i], i)
	}
	chosen, err := c.chosen(w, []string{policy})
	if err != nil {
		return plan.DeployUnit{}, err
	}
	if chosen[0].Type != plan.TypeEnvBinding {
		return plan.DeployUnit{}, fmt.Errorf("policy %s is of the type %s, not env-binding", policy, chosen[0].Type)
	}
	return plan.EnvironmentUnit(&chosen[0], env)
}
