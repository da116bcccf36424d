package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Environment is a place of an env-binding policy, and what is different there.
type Environment struct {
	Name      string `json:"name"`
	Placement struct {
		ClusterSelector   placeSelector `json:"clusterSelector,omitempty"`
		NamespaceSelector placeSelector `json:"namespaceSelector,omitempty"`
	} `json:"placement,omitempty"`
	// Selector has the names of the components to deploy. If it has none, all are deployed.
	Selector struct {
		Components []string `json:"components,omitempty"`
	} `json:"selector,omitempty"`
	Patch struct {
		Components []componentPatch `json:"components,omitempty"`
	} `json:"patch,omitempty"`
}

// placeSelector selects clusters or a namespace.
type placeSelector struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// environments returns the environments of an env-binding policy.
func environments(policy *oam.AppPolicy) ([]Environment, error) {
	var in struct {
		Envs []Environment `json:"envs"`
	}
	if err := Strict(RawOf(policy.Properties), &in); err != nil {
		return nil, err
	}
	if len(in.Envs) == 0 {
		return nil, errors.New("properties: envs must be given")
	}
	names := map[string]bool{}
	for i := range in.Envs {
		e := &in.Envs[i]
		switch {
		case e.Name == "":
			return nil, fmt.Errorf("properties: envs[%d]: name must be given", i)
		case names[e.Name]:
			return nil, fmt.Errorf("properties: envs[%d]: two environments have the name %s", i, e.Name)
		case len(e.Placement.NamespaceSelector.Labels) > 0:
			return nil, fmt.Errorf("properties: envs[%d]: a namespace is selected by its name, not by labels", i)
		case e.Placement.ClusterSelector.Name != "" && len(e.Placement.ClusterSelector.Labels) > 0:
			return nil, fmt.Errorf("properties: envs[%d]: clusters are selected by a name or by labels", i)
		}
		names[e.Name] = true
	}
	return in.Envs, nil
}

// EnvironmentNames returns the names of the environments of an env-binding policy.
func EnvironmentNames(policy *oam.AppPolicy) ([]string, error) {
	envs, err := environments(policy)
	names := make([]string, len(envs))
	for i := range envs {
		names[i] = envs[i].Name
	}
	return names, err
}

// EnvironmentUnit returns the unit that deploys an Application to an environment of an env-binding
// policy: the policies that a step deploy would name for the same.
func EnvironmentUnit(policy *oam.AppPolicy, env string) (DeployUnit, error) {
	envs, err := environments(policy)
	if err != nil {
		return DeployUnit{}, err
	}
	for i := range envs {
		if e := &envs[i]; e.Name == env {
			policies, err := e.policies()
			return DeployUnit{Only: e.Selector.Components, Policies: policies}, err
		}
	}
	return DeployUnit{}, fmt.Errorf("policy %s has no environment %s", policy.Name, env)
}

// policies returns the override and the topology policy of an environment.
func (e *Environment) policies() ([]oam.AppPolicy, error) {
	at := Topology{Namespace: e.Placement.NamespaceSelector.Name, ClusterLabelSelector: e.Placement.ClusterSelector.Labels}
	if name := e.Placement.ClusterSelector.Name; name != "" {
		at.Clusters = []string{name}
	}
	var out []oam.AppPolicy
	for _, p := range []struct {
		kind  string
		value any
	}{{TypeOverride, overriding{Components: e.Patch.Components}}, {TypeTopology, at}} {
		data, err := json.Marshal(p.value)
		if err != nil {
			return nil, err
		}
		out = append(out, oam.AppPolicy{Name: e.Name, Type: p.kind, Properties: &runtime.RawExtension{Raw: data}})
	}
	return out, nil
}

// CloudResource is a component that is made of a configuration of Terraform, in an environment.
type CloudResource struct {
	// Name is the component's name in the Application, and Value is the component of the environment,
	// which has a name and a Secret of its own.
	Name  string        `json:"name"`
	Value oam.Component `json:"value"`
	// Secret has the outputs of the configuration, and is copied to the environment.
	Secret struct {
		Namespace string `json:"namespace"`
		// From is the name of the Secret. Its copies are called To.
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"secret"`
}

// CloudResourceOf returns a component of an environment. namespace is the Application's.
func CloudResourceOf(c *oam.Component, env, namespace string) (*CloudResource, error) {
	out := &CloudResource{Name: c.Name, Value: *c.DeepCopy()}
	properties := map[string]json.RawMessage{}
	if raw := RawOf(c.Properties); len(raw) > 0 {
		if err := json.Unmarshal(raw, &properties); err != nil {
			return nil, fmt.Errorf("component %s: properties: %w", c.Name, err)
		}
	}
	var given struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	if raw := properties[connectionSecret]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, fmt.Errorf("component %s: properties: %s: %w", c.Name, connectionSecret, err)
		}
	}
	s := &out.Secret
	s.To, s.Namespace = cmp.Or(given.Name, c.Name), cmp.Or(given.Namespace, namespace)
	s.From = s.To + "-" + env
	var err error
	if properties[connectionSecret], err = json.Marshal(map[string]string{"name": s.From, "namespace": s.Namespace}); err != nil {
		return nil, err
	}
	data, err := json.Marshal(properties)
	if err != nil {
		return nil, err
	}
	out.Value.Name, out.Value.Properties = c.Name+"-"+env, &runtime.RawExtension{Raw: data}
	return out, nil
}

// connectionSecret is the property that names the Secret with the outputs of a configuration.
const connectionSecret = "writeConnectionSecretToRef"
