// Package dump reads a cluster's machines and pinned pods from the objects that kubectl prints:
//
//	kubectl get nodetopologies,nodes,pods -A -o json ──▶ Parse ──▶ Cluster
//
// NodeTopology objects describe the machines. Nodes without a NodeTopology are omitted, unless a
// machine is assumed for them, for clusters whose nodes have no agent yet. Pods that ask for their
// own CPUs are included, with or without a result; ended pods are not. All other objects in the
// list are ignored.
package dump

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

// Cluster is the content of a dump.
type Cluster struct {
	Nodes []Node // by name
	Pods  []Pod  // by creation, then namespace and name
	// Problems describe objects that could not be read, and pods that do not hold the CPUs in their
	// annotations.
	Problems []string
}

// Node is a machine and the holders of its CPUs.
type Node struct {
	Name   string
	Layout *allocate.Layout
	reservation.State
}

// Pod is a pod that asks for CPUs.
type Pod struct {
	Namespace, Name, Key string // Key identifies the pod in the node's State
	Node                 string // "" if the pod has no node yet
	CPUs                 int
	Created              time.Time
	Request              *allocate.Request
	Object               *corev1.Pod
}

// Parse parses a list of objects in JSON or YAML. assumed, if not nil, is the machine of nodes
// without a NodeTopology.
func Parse(data []byte, assumed *allocate.Layout) (*Cluster, error) {
	data, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("dump: %w", err)
	}
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("dump: not a list of objects: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("dump: no items; make one with: kubectl get nodetopologies,nodes,pods -A -o json")
	}
	r := reader{cluster: &Cluster{}, pins: map[string][]topologyv1alpha1.KubeletPin{}, moved: map[string]int64{},
		layouts: map[string]*allocate.Layout{}, shared: map[string]*allocate.Layout{}}
	for i, item := range list.Items {
		if err := r.object(item); err != nil {
			return nil, fmt.Errorf("dump: item %d: %w", i, err)
		}
	}
	r.finish(assumed)
	if len(r.cluster.Nodes) == 0 {
		return nil, fmt.Errorf(
			"dump: no NodeTopology: no node has told what its processors look like (name a model to assume one)")
	}
	return r.cluster, nil
}

type reader struct {
	cluster *Cluster
	nodes   []string // names of the objects of kind Node
	layouts map[string]*allocate.Layout
	shared  map[string]*allocate.Layout // by topology; equal machines share a Layout
	pins    map[string][]topologyv1alpha1.KubeletPin
	moved   map[string]int64
	results []placed
}

type placed struct {
	pod  reservation.Pod
	name string
}

func (r *reader) problem(format string, args ...any) {
	r.cluster.Problems = append(r.cluster.Problems, fmt.Sprintf(format, args...))
}

func (r *reader) object(item json.RawMessage) error {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(item, &head); err != nil {
		return err
	}
	switch {
	case head.Kind == "NodeTopology" && head.APIVersion == topologyv1alpha1.GroupVersion.String():
		var t topologyv1alpha1.NodeTopology
		if err := json.Unmarshal(item, &t); err != nil {
			return fmt.Errorf("NodeTopology %s: %w", head.Metadata.Name, err)
		}
		l, err := r.layout(&t)
		if err != nil {
			r.problem("NodeTopology %s: %v", t.Name, err)
			return nil
		}
		r.layouts[t.Name] = l
		r.pins[t.Name], r.moved[t.Name] = t.Status.KubeletPins, reservation.Moved(&t)
	case head.Kind == "Node" && head.APIVersion == "v1":
		r.nodes = append(r.nodes, head.Metadata.Name)
	case head.Kind == "Pod" && head.APIVersion == "v1":
		var p corev1.Pod
		if err := json.Unmarshal(item, &p); err != nil {
			return fmt.Errorf("Pod %s: %w", head.Metadata.Name, err)
		}
		r.pod(&p)
	}
	return nil
}

func (r *reader) layout(t *topologyv1alpha1.NodeTopology) (*allocate.Layout, error) {
	same, err := json.Marshal([]any{t.Spec, t.Status.Reserved})
	if err != nil {
		return nil, err
	}
	if l := r.shared[string(same)]; l != nil {
		return l, nil
	}
	l, err := reservation.Layout(t)
	if err == nil {
		r.shared[string(same)] = l
	}
	return l, err
}

func (r *reader) pod(p *corev1.Pod) {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	name := p.Namespace + "/" + p.Name
	asked, err := request.Parse(p)
	if err != nil {
		r.problem("Pod %s: %v", name, err)
		return
	}
	if asked == nil {
		return
	}
	prepared, err := allocate.NewRequest(asked)
	if err != nil {
		r.problem("Pod %s: %v", name, err)
		return
	}
	key := cmp.Or(string(p.UID), name)
	r.cluster.Pods = append(r.cluster.Pods, Pod{Namespace: p.Namespace, Name: p.Name, Key: key, Node: p.Spec.NodeName,
		CPUs: prepared.CPUs(), Created: p.CreationTimestamp.Time, Request: prepared, Object: p})
	if value := p.Annotations[request.LockstepResult]; value != "" && p.Spec.NodeName != "" {
		result, err := request.ParseResult(value)
		if err != nil {
			r.problem("Pod %s: %v", name, err)
			return
		}
		r.results = append(r.results,
			placed{reservation.Pod{Key: key, Created: p.CreationTimestamp.Time, Result: result}, p.Spec.NodeName})
	}
}

func (r *reader) finish(assumed *allocate.Layout) {
	for _, node := range r.nodes {
		if r.layouts[node] == nil && assumed != nil {
			r.layouts[node] = assumed
		}
	}
	names := r.cluster.Names()
	name := func(key string) string { return cmp.Or(names[key], key) }
	byNode := map[string][]reservation.Pod{}
	for _, p := range r.results {
		if r.layouts[p.name] == nil {
			r.problem("pod %s: the topology of its node %s is not known", name(p.pod.Key), p.name)
			continue
		}
		p.pod.Result = p.pod.Result.Settled(r.moved[p.name])
		byNode[p.name] = append(byNode[p.name], p.pod)
	}
	for node, l := range r.layouts {
		state := reservation.Replay(node, l, r.pins[node], byNode[node])
		for _, p := range state.Problems {
			r.problem("node %s: pod %s: %s", node, name(p.Key), strings.ReplaceAll(p.Message, p.Key, name(p.Key)))
		}
		r.cluster.Nodes = append(r.cluster.Nodes, Node{Name: node, Layout: l, State: state})
	}
	slices.SortFunc(r.cluster.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.cluster.Pods, func(a, b Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.Sort(r.cluster.Problems)
}

// Node returns the node with a name, or nil.
func (c *Cluster) Node(name string) *Node {
	i := slices.IndexFunc(c.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Nodes[i]
}

// Names maps the keys of pods to namespace/name.
func (c *Cluster) Names() map[string]string {
	names := map[string]string{}
	for _, p := range c.Pods {
		names[p.Key] = p.Namespace + "/" + p.Name
	}
	return names
}
