package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/render"
)

// component deploys a component that the step's template describes, and answers when the
// component is healthy.
func (x *action) component() (render.Answer, bool, error) {
	if x.Params["patch"] != nil {
		return render.Answer{}, false, errors.New("patch: a component is changed by traits and override policies")
	}
	value, _ := x.Params["value"].(map[string]any)
	data, err := json.Marshal(value)
	if err != nil {
		return render.Answer{}, false, err
	}
	var comp oam.Component
	if err := json.Unmarshal(data, &comp); err != nil {
		return render.Answer{}, false, fmt.Errorf("value is not a component: %w", err)
	}
	if comp.Name == "" || comp.Type == "" {
		return render.Answer{}, false, errors.New("value is not a component: it has no name or no type")
	}
	unit := plan.DeployUnit{Value: &comp, Cluster: text(x.Params, "cluster"), Namespace: text(x.Params, "namespace")}
	if healthy, ok := x.Params["waitHealthy"].(bool); ok && !healthy {
		unit.Unwatched = true
	}
	part, ready, err := x.unit(unit)
	if !ready || err != nil {
		return render.Answer{}, false, err
	}
	returns := map[string]any{}
	for i := range part.plan.Components {
		objects := x.w.objects(x.r.Targets, x.a.Plan, part.plan.Components[i].Key())
		delete(objects, "context")
		maps.Copy(returns, objects)
	}
	return render.Answer{Returns: returns}, true, nil
}

// deploy deploys the Application's components with the policies that the step names.
func (x *action) deploy() (render.Answer, bool, error) {
	var in struct {
		Policies       []string        `json:"policies"`
		InlinePolicies []oam.AppPolicy `json:"inlinePolicies"`
		// IgnoreTerraformComponent is true by default.
		IgnoreTerraformComponent *bool `json:"ignoreTerraformComponent"`
	}
	data, err := json.Marshal(map[string]any(x.Params))
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err != nil {
		return render.Answer{}, false, err
	}
	policies, err := x.r.chosen(x.w, in.Policies)
	if err != nil {
		return render.Answer{}, false, err
	}
	_, ready, err := x.unit(plan.DeployUnit{Policies: append(policies, in.InlinePolicies...),
		LeavesTerraform: in.IgnoreTerraformComponent == nil || *in.IgnoreTerraformComponent})
	return render.Answer{}, ready, err
}

// unit deploys a unit that only the step's template describes, and records the unit.
func (x *action) unit(unit plan.DeployUnit) (*deployedUnit, bool, error) {
	key, f := x.step+"/"+x.Key, x.a.Tracker.Flow
	if _, ok := f.Units[key]; !ok {
		if f.Units == nil {
			f.Units = map[string]plan.DeployUnit{}
		}
		f.Units[key] = unit
	}
	r, part := x.r.unitResult(x.a, x.w, x.p, key, unit)
	switch r.Outcome {
	case flow.Succeeded:
		return part, true, nil
	case flow.Running, flow.Acting:
		return part, false, nil
	}
	return part, false, errors.New(r.Message)
}

// placements answers with the placements that the topology policies select.
func (x *action) placements() (render.Answer, bool, error) {
	names, _ := x.Params["policies"].([]any)
	out := []any{}
	if len(names) == 0 {
		for _, name := range slices.Sorted(maps.Keys(x.w.policies)) {
			if x.w.policies[name].Type == plan.TypeTopology {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		out = append(out, map[string]any{"cluster": oam.LocalCluster, "namespace": x.a.Key.Namespace})
	}
	for _, name := range names {
		policies, err := x.r.chosen(x.w, []string{fmt.Sprint(name)})
		if err != nil {
			return render.Answer{}, false, err
		}
		if policies[0].Type != plan.TypeTopology {
			continue
		}
		in := x.w.input
		in.Spec = &oam.ApplicationSpec{Policies: policies}
		places, err := plan.Placements(&in)
		if err != nil {
			return render.Answer{}, false, err
		}
		for _, at := range places {
			out = append(out, map[string]any{"cluster": at.ClusterName(), "namespace": at.Namespace})
		}
	}
	return render.Answer{Returns: map[string]any{"placements": out}}, true, nil
}

// endpoints answers with the addresses of an Application's Services and Ingresses.
func (x *action) endpoints() (render.Answer, bool, error) {
	app, _ := x.Params["app"].(map[string]any)
	filter, _ := app["filter"].(map[string]any)
	k := types.NamespacedName{Namespace: text(app, "namespace"), Name: text(app, "name")}
	if k.Namespace == "" {
		k.Namespace = x.a.Key.Namespace
	}
	if k.Name == "" {
		k.Name = x.a.Key.Name
	}
	if err := x.r.MayReachNamespace(x.a, k.Namespace, true); err != nil {
		return render.Answer{}, false, err
	}
	resources := x.a.Tracker.Resources
	if k != x.a.Key {
		// Watch the other Application: its status changes when its services are deployed.
		other := plan.Ref{GVK: oam.GroupVersion.WithKind("Application"), Namespace: k.Namespace, Name: k.Name}
		if _, known, err := x.r.Watches.Get(x.r.Targets.Local, other, x.a.Key, false); err != nil || !known {
			return render.Answer{}, false, err
		}
		if err := x.r.MayRead(x.a, x.r.Targets.Local, other); err != nil {
			return render.Answer{}, false, err
		}
		raw, ok := records.RecordOf(x.r.Trackers, k)
		if !ok {
			return render.Answer{}, false, fmt.Errorf("there is no application %s", k)
		}
		rt, err := x.r.Trackers.Unpack(raw)
		if err != nil {
			return render.Answer{}, false, err
		}
		resources = rt.Spec.ManagedResources
	}
	var components []string
	list, _ := filter["components"].([]any)
	for _, x := range list {
		components = append(components, fmt.Sprint(x))
	}
	out := []any{}
	for i := range resources {
		m := &resources[i]
		if len(components) > 0 && !slices.Contains(components, m.Component) || m.Kind != "Service" && m.Kind != "Ingress" {
			continue
		}
		there := objects.Map(x.r.Targets.Seen(records.RefOf(m)))
		for _, e := range endpointsOf(there) {
			cluster := m.Cluster
			if cluster == "" {
				cluster = oam.LocalCluster
			}
			out = append(out, map[string]any{
				"endpoint": e, "cluster": cluster, "component": m.Component,
				"ref": map[string]any{"apiVersion": m.APIVersion, "kind": m.Kind, "namespace": m.Namespace, "name": m.Name},
			})
		}
	}
	return render.Answer{Returns: map[string]any{"list": out}}, true, nil
}
