package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// ErrNoCluster means that a cluster does not exist. Plans that failed with it are made again when
// clusters change.
var ErrNoCluster = errors.New("there is no such cluster")

// Clusters returns the clusters that objects can be deployed to.
type Clusters interface {
	// Target returns the cluster of that name, or an error that wraps ErrNoCluster. The empty name
	// is the local cluster.
	Target(name string) (Target, error)
	// Labelled returns the sorted names of the clusters that have all these labels. The local
	// cluster's name is empty.
	Labelled(labels map[string]string) []string
}

// Target is what a plan needs to know about a cluster.
type Target struct {
	Kinds   Kinds
	Version render.ClusterVersion
	// APIs has the API versions and kinds that the cluster serves, such as apps/v1 and
	// apps/v1/Deployment.
	APIs []string
}

// Local implements Clusters with the local cluster only.
type Local Target

// Target implements Clusters.
func (l Local) Target(name string) (Target, error) {
	if name != "" {
		return Target{}, fmt.Errorf("cluster %s: %w", name, ErrNoCluster)
	}
	return Target(l), nil
}

// Labelled implements Clusters.
func (l Local) Labelled(labels map[string]string) []string {
	if len(labels) > 0 {
		return nil
	}
	return []string{""}
}

// Placement is a cluster and a namespace in which components are deployed.
type Placement struct {
	// Cluster is empty for the local cluster.
	Cluster   string
	Namespace string
}

// ClusterName returns the cluster's name. For the local cluster, that is oam.LocalCluster.
func (p Placement) ClusterName() string {
	if p.Cluster == "" {
		return oam.LocalCluster
	}
	return p.Cluster
}

// Key returns a key for the placement of a replica of a component. replica is empty if there is one.
func (p Placement) Key(replica string) string {
	key := p.Cluster + "/" + p.Namespace
	if replica != "" {
		key += "#" + replica
	}
	return key
}

// Topology is a topology policy: it says where components are deployed.
type Topology struct {
	Name string `json:"-"`
	// Clusters has the clusters' names.
	Clusters []string `json:"clusters,omitempty"`
	// ClusterLabelSelector selects clusters by label if Clusters is empty. ClusterSelector is its
	// old name.
	ClusterLabelSelector map[string]string `json:"clusterLabelSelector,omitempty"`
	ClusterSelector      map[string]string `json:"clusterSelector,omitempty"`
	// AllowEmpty permits that no cluster matches the labels.
	AllowEmpty bool `json:"allowEmpty,omitempty"`
	// Namespace is where components are deployed. If empty, it is the Application's namespace.
	Namespace string `json:"namespace,omitempty"`
}

// Placements returns the placements that the topology selects.
func (t *Topology) Placements(in *Input) ([]Placement, error) {
	namespace := t.Namespace
	if namespace == "" {
		namespace = in.Namespace
	}
	selector := t.ClusterLabelSelector
	if selector == nil {
		selector = t.ClusterSelector
	}
	names := []string{""}
	switch {
	case len(t.Clusters) > 0:
		names = names[:0]
		for _, name := range t.Clusters {
			if name == oam.LocalCluster {
				name = ""
			}
			if _, err := in.Clusters.Target(name); err != nil {
				return nil, err
			}
			names = append(names, name)
		}
	case selector != nil:
		if names = in.Clusters.Labelled(selector); len(names) == 0 && !t.AllowEmpty {
			return nil, fmt.Errorf("no cluster is labelled %s: %w", selectorText(selector), ErrNoCluster)
		}
	}
	out := make([]Placement, len(names))
	for i, name := range names {
		out[i] = Placement{name, namespace}
	}
	return out, nil
}

func selectorText(selector map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		parts = append(parts, k+"="+selector[k])
	}
	return strings.Join(parts, ",")
}

// Placements returns the placements that the Application's topology policies select.
func Placements(in *Input) ([]Placement, error) {
	p, err := RulesOf(in)
	if err != nil {
		return nil, err
	}
	return p.placements(in)
}

// placements returns the placements of all topologies, each one once. Without topologies, it
// returns the Application's namespace in the local cluster.
func (p *Policies) placements(in *Input) ([]Placement, error) {
	if len(p.Topologies) == 0 {
		return []Placement{{Namespace: in.Namespace}}, nil
	}
	var out []Placement
	for i := range p.Topologies {
		more, err := p.Topologies[i].Placements(in)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", p.Topologies[i].Name, err)
		}
		for _, at := range more {
			if !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	return out, nil
}
