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

// ErrNoCluster is for clusters that do not exist: plans that failed for it are made again when clusters change.
var ErrNoCluster = errors.New("there is no such cluster")

// Clusters knows the clusters that objects can go to.
type Clusters interface {
	// Target is the cluster of that name, empty for the local one, or an error that wraps ErrNoCluster.
	Target(name string) (Target, error)
	// Labelled are the names of the clusters that have all these labels, sorted, empty for the local one.
	Labelled(labels map[string]string) []string
}

// Target is what a plan needs to know of a cluster.
type Target struct {
	Kinds   Kinds
	Version render.ClusterVersion
	// APIs are what it serves, as apps/v1 and apps/v1/Deployment.
	APIs []string
}

// Local is the Clusters of who knows one only.
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

// Placement is a cluster and a namespace that components go to.
type Placement struct {
	// Cluster is empty for the local one.
	Cluster   string
	Namespace string
}

// ClusterName is the cluster's name, also of the local one.
func (p Placement) ClusterName() string {
	if p.Cluster == "" {
		return oam.LocalCluster
	}
	return p.Cluster
}

// Topology is a policy that says where components go.
type Topology struct {
	Name string `json:"-"`
	// Clusters by their names.
	Clusters []string `json:"clusters,omitempty"`
	// ClusterLabelSelector chooses clusters by their labels, where no names are given. ClusterSelector is its old name.
	ClusterLabelSelector map[string]string `json:"clusterLabelSelector,omitempty"`
	ClusterSelector      map[string]string `json:"clusterSelector,omitempty"`
	// AllowEmpty lets no cluster have the labels.
	AllowEmpty bool `json:"allowEmpty,omitempty"`
	// Namespace is empty for the application's.
	Namespace string `json:"namespace,omitempty"`
}

// Placements are where the components go that the topology is for.
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

// Placements are where the application's topology policies send its components.
func Placements(in *Input) ([]Placement, error) {
	p, err := Open(in)
	if err != nil {
		return nil, err
	}
	return p.Policies.placements(in)
}

// placements are those of all topologies, each once.
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
