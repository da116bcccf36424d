package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// DeployUnit is the part of an Application that one workflow step deploys, and the places to which
// it is deployed.
type DeployUnit struct {
	// Only has the names of the components to deploy. They do not wait for components outside the
	// unit. If nil, all components are deployed.
	Only []string `json:"only,omitempty"`
	// Value is a component that the step itself describes, instead of the Application's components.
	Value *oam.Component `json:"value,omitempty"`
	// Policies are the topology, override and replication policies that the step names.
	Policies []oam.AppPolicy `json:"policies,omitempty"`
	// Cluster and Namespace are the placement if the step gives one without a policy.
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Unwatched is set if the step does not wait for the components' health.
	Unwatched bool `json:"unwatched,omitempty"`
	// LeavesTerraform is set if the step leaves out components that are made of configurations of
	// Terraform.
	LeavesTerraform bool `json:"leavesTerraform,omitempty"`
}

// Spec returns the part of the Application's spec that the unit deploys: its components as changed
// by policies, and the policies that apply to their placement and objects.
func (u *DeployUnit) Spec(app *oam.ApplicationSpec) (*oam.ApplicationSpec, error) {
	out := &oam.ApplicationSpec{Components: app.Components}
	if u.Value != nil {
		out.Components = []oam.Component{*u.Value.DeepCopy()}
	}
	var err error
	if out.Components, err = Override(out.Components, u.Policies); err != nil {
		return nil, err
	}
	if out.Components, err = replicate(out.Components, u.Policies); err != nil {
		return nil, err
	}
	if u.Only != nil {
		for _, name := range u.Only {
			if !slices.ContainsFunc(out.Components, func(c oam.Component) bool { return c.Name == name }) {
				return nil, fmt.Errorf("there is no component %s", name)
			}
		}
		out.Components = slices.DeleteFunc(slices.Clone(out.Components), func(c oam.Component) bool {
			return !slices.Contains(u.Only, c.Name)
		})
	}
	// Dependencies on components that other steps deploy are dropped.
	names := map[string]bool{}
	for i := range out.Components {
		names[out.Components[i].Name] = true
	}
	if u.Only != nil || u.Value != nil {
		out.Components = slices.Clone(out.Components)
		for i := range out.Components {
			out.Components[i].DependsOn = slices.DeleteFunc(slices.Clone(out.Components[i].DependsOn), func(d string) bool {
				return !names[d]
			})
		}
	}
	for i := range app.Policies {
		if !chooses(app.Policies[i].Type) {
			out.Policies = append(out.Policies, app.Policies[i])
		}
	}
	for i := range u.Policies {
		if u.Policies[i].Type == TypeTopology {
			out.Policies = append(out.Policies, u.Policies[i])
		}
	}
	if u.Cluster != "" || u.Namespace != "" {
		cluster := u.Cluster
		if cluster == "" {
			cluster = oam.LocalCluster
		}
		properties, err := json.Marshal(map[string]any{"clusters": []string{cluster}, "namespace": u.Namespace})
		if err != nil {
			return nil, err
		}
		out.Policies = append(out.Policies,
			oam.AppPolicy{Name: "step", Type: TypeTopology, Properties: &runtime.RawExtension{Raw: properties}})
	}
	return out, nil
}

// chooses reports whether policies of this type apply only where a step names them.
func chooses(policyType string) bool {
	return policyType == TypeTopology || policyType == TypeOverride || policyType == TypeReplication || policyType == TypeEnvBinding
}

// replicate replaces components by one copy for each key of the replication policies.
func replicate(components []oam.Component, policies []oam.AppPolicy) ([]oam.Component, error) {
	for i := range policies {
		if policies[i].Type != TypeReplication {
			continue
		}
		var in struct {
			Keys     []string `json:"keys"`
			Selector []string `json:"selector,omitempty"`
		}
		if err := Strict(RawOf(policies[i].Properties), &in); err != nil {
			return nil, fmt.Errorf("policy %s: %w", policies[i].Name, err)
		}
		if len(in.Keys) == 0 {
			return nil, fmt.Errorf("policy %s: keys must be given", policies[i].Name)
		}
		var out []oam.Component
		for _, c := range components {
			if len(in.Selector) > 0 && !slices.Contains(in.Selector, c.Name) || c.ReplicaKey != "" {
				out = append(out, c)
				continue
			}
			for _, key := range in.Keys {
				c.ReplicaKey = key
				out = append(out, c)
			}
		}
		components = out
	}
	return components, nil
}

// Merge merges plans into one. Objects and components of later plans replace those of earlier ones.
func Merge(parts []*Plan, policies *Policies) *Plan {
	out := &Plan{Policies: policies, Definitions: map[string]string{}}
	last := map[Ref]int{}             // the last part that makes each object
	lastComponent := map[string]int{} // the last part that has each component in a placement
	for n, p := range parts {
		for i := range p.Resources {
			last[p.Resources[i].Ref] = n
		}
		for i := range p.Components {
			c := &p.Components[i]
			if _, earlier := lastComponent[c.Key()]; !earlier || c.Err == nil {
				lastComponent[c.Key()] = n // a component without objects replaces no other
			}
		}
		maps.Copy(out.Definitions, p.Definitions)
		for _, w := range p.Warnings {
			if !slices.Contains(out.Warnings, w) {
				out.Warnings = append(out.Warnings, w)
			}
		}
	}
	for n, p := range parts {
		in := map[int]bool{}
		for i := range p.Components {
			c := p.Components[i]
			for _, at := range c.Resources {
				in[at] = true
			}
			if lastComponent[c.Key()] != n {
				continue
			}
			resources, workload := c.Resources, c.Workload
			c.Resources, c.Workload = nil, -1
			for _, at := range resources {
				if last[p.Resources[at].Ref] != n {
					continue
				}
				if at == workload {
					c.Workload = len(out.Resources)
				}
				c.Resources = append(c.Resources, len(out.Resources))
				out.Resources = append(out.Resources, p.Resources[at])
			}
			out.Components = append(out.Components, c)
		}
		for i := range p.Resources {
			if !in[i] && last[p.Resources[i].Ref] == n {
				out.Loose = append(out.Loose, len(out.Resources))
				out.Resources = append(out.Resources, p.Resources[i])
			}
		}
	}
	return out
}

// Same reports whether two plans of one state of an Application have the same components, objects and
// definitions. Either may be nil.
func Same(a, b *Plan) bool {
	if a == nil || b == nil {
		return a == b
	}
	return maps.Equal(a.Definitions, b.Definitions) && slices.EqualFunc(a.Resources, b.Resources, func(x, y Resource) bool { return x.Ref == y.Ref && x.Hash == y.Hash }) &&
		slices.EqualFunc(a.Components, b.Components, func(x, y Component) bool {
			return x.Key() == y.Key() && (x.Err == nil) == (y.Err == nil) && (x.Err == nil || x.Err.Error() == y.Err.Error())
		})
}
