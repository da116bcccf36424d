package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// goneNodesMax bounds how many removed nodes are remembered for views that have not been refreshed since.
const goneNodesMax = 1024

// UpsertNode takes over what the API server says about a node. A heartbeat, which changes nothing that placement reads,
// costs a comparison.
func (c *Cluster) UpsertNode(object *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.node(object.Name)
	if n.object != nil && sameNode(n.object, object) {
		return
	}
	if n.object == nil {
		c.gone--
	}
	c.count(n, -1)
	n.object = object
	n.allocatable = c.dims.Vector(object.Status.Allocatable)
	c.count(n, 1)
	c.touch(n)
	c.changed(func(ch *Changes) { ch.node(n.name) })
}

// DeleteNode removes a node. Pods that name it keep holding it, in case it comes back under the same name.
func (c *Cluster) DeleteNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil || n.object == nil {
		return
	}
	c.count(n, -1)
	n.object, n.allocatable = nil, nil
	c.gone++
	c.touch(n)
	c.dropNodeIfUnused(n)
	// Its domain of a topology may have been what kept a spread from holding.
	c.changed(func(ch *Changes) { ch.Pods = true })
}

// Total is the allocatable of all nodes that take new pods.
func (c *Cluster) Total() place.Vector {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.total)
}

// View is a snapshot with the generation of the model that it shows. The zero value is not usable; see NewView.
type View struct {
	*place.Snapshot
	generation int64
	follow     func(NodeCPUs)
}

// NewView returns a view without nodes; Refresh fills it.
func (c *Cluster) NewView() *View { return &View{Snapshot: place.NewSnapshot(c.dims), generation: -1} }

// Refresh brings a view up to date. It costs in proportion to the nodes that changed since the last time.
func (c *Cluster) Refresh(v *View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.generation < c.purged {
		c.removeUnknown(v)
	}
	for e := c.recent.Front(); e != nil; e = e.Next() {
		n := e.Value.(*node)
		if n.generation <= v.generation {
			break
		}
		if n.object == nil {
			v.Remove(n.name)
			c.tellCPUs(v, n)
			continue
		}
		v.Set(place.Node{
			Name:          n.name,
			Labels:        n.object.Labels,
			Taints:        n.object.Spec.Taints,
			Unschedulable: n.object.Spec.Unschedulable,
			Allocatable:   n.allocatable,
			Used:          n.used,
			UsedNonZero:   n.usedNonZero,
			Ports:         n.ports,
			Object:        n.object,
			Generation:    n.generation,
		})
		c.tellCPUs(v, n)
	}
	v.generation = c.generation
}

// removeUnknown is for a view that is older than the memory of removals.
func (c *Cluster) removeUnknown(v *View) {
	var unknown []string
	for _, n := range v.All() {
		if m := c.nodes[n.Name]; m == nil || m.object == nil {
			unknown = append(unknown, n.Name)
		}
	}
	for _, name := range unknown {
		v.Remove(name)
		if v.follow != nil && c.pins {
			v.follow(NodeCPUs{Node: name})
		}
	}
}

// node finds or makes the entry of a name.
func (c *Cluster) node(name string) *node {
	n := c.nodes[name]
	if n == nil {
		n = &node{name: name, pods: map[*pod]struct{}{}}
		n.at = c.recent.PushFront(n)
		c.nodes[name] = n
		c.gone++
		c.touch(n)
	}
	return n
}

// touch makes the node the one that changed last.
func (c *Cluster) touch(n *node) {
	c.generation++
	n.generation = c.generation
	c.recent.MoveToFront(n.at)
}

// count adds the node to the total or takes it out.
func (c *Cluster) count(n *node, sign int64) {
	if n.object != nil && !n.object.Spec.Unschedulable {
		c.total = c.total.Plus(n.allocatable, sign)
	}
}

// dropNodeIfUnused forgets removed nodes that no pod names, once there are many.
func (c *Cluster) dropNodeIfUnused(n *node) {
	if n.object != nil || c.gone <= goneNodesMax {
		return
	}
	for name, n := range c.nodes {
		if n.object == nil && len(n.pods) == 0 {
			c.recent.Remove(n.at)
			delete(c.nodes, name)
			c.gone--
		}
	}
	c.purged = c.generation
}

// sameNode says that placement cannot tell the two apart.
func sameNode(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.Spec.Unschedulable == b.Spec.Unschedulable && maps.Equal(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints) &&
		equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable)
}
