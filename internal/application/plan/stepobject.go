package plan

import (
	"fmt"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// Open returns a plan without objects. It has only the Application's policies, parsed and checked.
func Open(in *Input) (*Plan, error) {
	policies, _, err := parsePolicies(in.Spec.Policies, in.Labels)
	if err != nil {
		return nil, &Error{Stage: Policy, Err: err}
	}
	return &Plan{Policies: policies, Definitions: map[string]string{}}, nil
}

// Object makes a resource from an object that a workflow step applies itself. It sets the
// Application's labels and applies the policies' rules.
func Object(in *Input, policies *Policies, step, cluster string, object map[string]any) (*Resource, error) {
	if cluster == oam.LocalCluster {
		cluster = ""
	}
	target, err := in.Clusters.Target(cluster)
	if err != nil {
		return nil, err
	}
	at := &Component{Name: step, Placement: Placement{Cluster: cluster, Namespace: in.Namespace}}
	r, err := newResource(in, at, &render.Object{Object: object, Name: step, TraitIndex: -1}, target.Kinds)
	if err != nil {
		return nil, fmt.Errorf("what step %s applies: %w", step, err)
	}
	r.Component, r.Output, r.Step = "", "", step
	policies.Treat(r)
	return r, nil
}
