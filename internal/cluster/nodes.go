package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// goneNodesMax is the maximum number of removed nodes kept for views that have not been refreshed
// since.
const goneNodesMax = 1024

// UpsertNode stores the API server's state of a node. A heartbeat changes nothing that placement
// reads, and costs only a comparison.
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
	n.standing = c.standing(object)
	c.count(n, 1)
	c.touch(n)
	reshaped := c.network.SetNode(n.name, object.Labels)
	c.changed(func(ch *Changes) {
		ch.node(n.name)
		ch.Network = ch.Network || reshaped
	})
}

// DeleteNode removes a node. Pods that name the node keep their reservations, in case a node with
// the same name appears.
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
	// The removal of a topology domain may satisfy a spread constraint.
	reshaped := c.network.RemoveNode(name)
	c.changed(func(ch *Changes) {
		ch.Pods = true
		ch.Network = ch.Network || reshaped
	})
}

// SetStandings sets what is known of the nodes beside their objects and their pods. of must not block
// and always return the same for equal objects. It is called for the nodes that exist, and for later
// ones as they appear and change, until the next SetStandings.
func (c *Cluster) SetStandings(of func(*corev1.Node) place.Standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.standing = of
	var changed []string
	for name, n := range c.nodes {
		if n.object == nil {
			continue
		}
		s, before := of(n.object), n.standing
		if s == before {
			continue
		}
		n.standing = s
		c.touch(n)
		if s.Score = before.Score; s != before { // a score helps no gang
			changed = append(changed, name)
		}
	}
	if len(changed) > 0 {
		c.changed(func(ch *Changes) {
			for _, name := range changed {
				ch.node(name)
			}
		})
	}
}

// Total returns the allocatable resources of all schedulable nodes.
func (c *Cluster) Total() place.Vector {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.total)
}

// View is a snapshot and the generation of the model that it shows. The zero value is not usable;
// see NewView.
type View struct {
	*place.Snapshot
	generation int64
	follow     func(NodeCPUs)
}

// NewView returns a view without nodes; Refresh fills it.
func (c *Cluster) NewView() *View { return &View{Snapshot: place.NewSnapshot(c.dims), generation: -1} }

// Generation returns the Generation of the model that the view shows.
func (v *View) Generation() int64 { return v.generation }

// Refresh updates a view. Its cost is proportional to the number of nodes that changed since the
// last Refresh.
func (c *Cluster) Refresh(v *View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(v)
}

func (c *Cluster) refresh(v *View) {
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
		used, nonZero, ports := n.taken()
		v.Set(place.Node{
			Name:          n.name,
			Labels:        n.object.Labels,
			Taints:        n.object.Spec.Taints,
			Unschedulable: n.object.Spec.Unschedulable,
			Allocatable:   n.allocatable,
			Used:          used,
			UsedNonZero:   nonZero,
			Ports:         ports,
			Standing:      n.standing,
			Object:        n.object,
			Generation:    n.generation,
		})
		c.tellCPUs(v, n)
	}
	v.generation = c.generation
}

// removeUnknown removes from a view the nodes that no longer exist. It is for views that are older
// than the removals in c.recent.
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

// node returns the entry of a name, and creates it if there is none.
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

// touch makes the node the most recently changed one.
func (c *Cluster) touch(n *node) {
	c.generation++
	n.generation = c.generation
	c.recent.MoveToFront(n.at)
}

// count adds the node's allocatable resources to the total (sign 1) or subtracts them (sign -1).
func (c *Cluster) count(n *node, sign int64) {
	if n.object != nil && !n.object.Spec.Unschedulable {
		c.total = c.total.Plus(n.allocatable, sign)
	}
}

// dropNodeIfUnused forgets all removed nodes that no pod names, if n is removed and there are more
// than goneNodesMax removed nodes.
func (c *Cluster) dropNodeIfUnused(n *node) {
	if n.object != nil || c.gone <= goneNodesMax {
		return
	}
	for name, n := range c.nodes {
		if n.object == nil && len(n.pods) == 0 && !n.hasClaims() {
			c.recent.Remove(n.at)
			delete(c.nodes, name)
			c.gone--
		}
	}
	c.purged = c.generation
}

// sameNode reports whether two states of a node are equal for placement.
func sameNode(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.Spec.Unschedulable == b.Spec.Unschedulable && maps.Equal(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints) &&
		equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable)
}
