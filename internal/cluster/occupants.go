package cluster

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Occupant is a pod that has a reservation on a node and counts against a queue. It is immutable, but for
// Gang, which the scheduler sets for pods that exist.
type Occupant struct {
	Name types.NamespacedName
	// Object is the pod as the API server has it on its node, or nil while the pod is only assumed.
	Object      *corev1.Pod
	Node, Queue string
	// Gang is the key of the gang that the pod was placed with, while it is assumed, or the gang that the
	// owner of an existing pod says.
	Gang             string
	Request, NonZero place.Vector
	Ports            []place.HostPort
}

// Occupants are the pods that have reservations on nodes and belong to a queue. The zero value is empty;
// FollowOccupants fills it.
type Occupants struct {
	// On are the pods by node, in no order. FollowOccupants replaces the lists that have changed. An
	// element is replaced when anything about its pod changes, and only then.
	On      map[string][]*Occupant
	version int64
}

// FollowOccupants refreshes a view, and brings o to the same state of the model. It returns the nodes whose
// pods may have changed since o was last brought up to date, in any order. It costs O(nodes + pods on
// nodes that have changed).
func (c *Cluster) FollowOccupants(o *Occupants, v *View) (changed []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(v)
	if o.On == nil {
		o.On = map[string][]*Occupant{}
	}
	for name := range o.On {
		if c.nodes[name] == nil {
			delete(o.On, name)
			changed = append(changed, name)
		}
	}
	for name, n := range c.nodes {
		if n.occupied <= o.version {
			continue
		}
		changed = append(changed, name)
		delete(o.On, name)
		if list := n.occupants(); len(list) > 0 {
			o.On[name] = list
		}
	}
	o.version = c.occupations
	return changed
}

// OccupantsOf returns the pods on one node that belong to a queue, in any order.
func (c *Cluster) OccupantsOf(node string) []*Occupant {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[node]
	if n == nil {
		return nil
	}
	return n.occupants()
}

func (n *node) occupants() (list []*Occupant) {
	for p := range n.pods {
		if p.known == nil {
			if o, ok := p.occupant(); ok {
				p.known = &o
			}
		}
		if p.known != nil {
			list = append(list, p.known)
		}
	}
	return list
}

// occupy notes that the pods of a node, or what is known of them, may have changed.
func (c *Cluster) occupy(n *node) {
	c.occupations++
	n.occupied = c.occupations
}

// occupant returns the pod as an occupant; ok is false if it has no node or belongs to no queue.
func (p *pod) occupant() (o Occupant, ok bool) {
	r := &p.reserved
	if r.node == "" || r.queue == "" {
		return o, false
	}
	o = Occupant{Name: p.name, Node: r.node, Queue: r.queue, Request: r.request, NonZero: r.nonZero, Ports: r.ports}
	if p.object != nil && p.object.Spec.NodeName == r.node {
		o.Object = p.object
	} else if p.assume != nil {
		o.Gang = p.assume.gang
	}
	return o, true
}

// LowestPriority returns the lowest priority of the pods that count against a queue, or any queue if the name
// is empty, and have nodes. It returns false if there are none.
func (c *Cluster) LowestPriority(name string) (lowest int32, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	look := func(q *queue) {
		for priority := range q.pods {
			if !found || priority < lowest {
				lowest, found = priority, true
			}
		}
	}
	if name != "" {
		if q := c.queues[name]; q != nil {
			look(q)
		}
		return lowest, found
	}
	for _, q := range c.queues {
		look(q)
	}
	return lowest, found
}

// Generation returns a number that changes whenever a node, or a reservation on a node, does.
func (c *Cluster) Generation() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// Exists reports whether the pod with this UID has a reservation.
func (c *Cluster) Exists(name types.NamespacedName, uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	return p != nil && p.object != nil && p.object.UID == uid && p.reserved.node != ""
}

// Claim is capacity of one node that is kept for a gang until pods that use it have left.
type Claim struct {
	Node  string
	Class *place.Class
}

// SetClaims keeps capacity of nodes for a gang: views show it as used. The claims replace earlier
// ones of the gang; nil ends them. SetClaims announces no change: the caller decides who is helped
// when claims end (see Freed). It returns what Generation was before and is afterwards.
func (c *Cluster) SetClaims(gang string, claims []Claim) (before, after int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.generation
	c.charges(c.claims[gang], -1)
	if len(claims) == 0 {
		delete(c.claims, gang)
		return before, c.generation
	}
	c.claims[gang] = slices.Clone(claims)
	c.charges(claims, 1)
	return before, c.generation
}

// Freed announces that nodes may take pods that they did not take before.
func (c *Cluster) Freed(claims []Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed(func(ch *Changes) {
		for _, k := range claims {
			ch.node(k.Node)
		}
		ch.Queues = true
	})
}

// charges adds claims to their nodes (sign 1) or removes them (sign -1).
func (c *Cluster) charges(claims []Claim, sign int64) {
	for _, k := range claims {
		n := c.node(k.Node)
		n.claimed = n.claimed.Plus(k.Class.Request, sign)
		n.claimedNonZero = n.claimedNonZero.Plus(k.Class.NonZero, sign)
		for _, port := range k.Class.Ports {
			if n.claimedPorts == nil {
				n.claimedPorts = place.PortSet{}
			}
			if n.claimedPorts[port] += int(sign); n.claimedPorts[port] == 0 {
				delete(n.claimedPorts, port)
			}
		}
		c.touch(n)
	}
}

// taken returns what pods and claims use of a node.
func (n *node) taken() (used, nonZero place.Vector, ports place.PortSet) {
	used, nonZero, ports = n.used, n.usedNonZero, n.ports
	if n.hasClaims() {
		used, nonZero = used.Plus(n.claimed, 1), nonZero.Plus(n.claimedNonZero, 1)
	}
	if len(n.claimedPorts) > 0 {
		ports = maps.Clone(n.claimedPorts)
		for port, pods := range n.ports {
			ports[port] += pods
		}
	}
	return used, nonZero, ports
}

func (n *node) hasClaims() bool {
	return slices.ContainsFunc(n.claimed, func(amount int64) bool { return amount != 0 })
}

// count counts pods with nodes by priority.
func (q *queue) count(priority int32, pods int) {
	if q.pods[priority] += pods; q.pods[priority] == 0 {
		delete(q.pods, priority)
	}
}

// setPriority changes the priority of a pod whose reservation stays the same.
func (c *Cluster) setPriority(p *pod, priority int32) {
	if r := &p.reserved; r.queue != "" && r.node != "" && r.priority != priority {
		q := c.queue(r.queue)
		q.count(r.priority, -1)
		q.count(priority, 1)
	}
	p.reserved.priority = priority
}

// priorityOf returns the priority of a pod, or that of its class before admission has set it.
func (c *Cluster) priorityOf(p *corev1.Pod) int32 {
	if p.Spec.Priority != nil {
		return *p.Spec.Priority
	}
	return c.priorities.value[cmp.Or(p.Spec.PriorityClassName, c.priorities.fallback)]
}

// PriorityOf returns the priority of a pod, or that of its class before admission has set it.
func (c *Cluster) PriorityOf(p *corev1.Pod) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.priorityOf(p)
}
