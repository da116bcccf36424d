package cluster

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Occupant is a pod that has a reservation on a node and counts against a queue.
type Occupant struct {
	Name types.NamespacedName
	// Object is the pod as the API server has it on its node, or nil while the pod is only assumed.
	Object      *corev1.Pod
	Node, Queue string
	// Gang is the key of the gang that the pod was placed with, while it is assumed.
	Gang             string
	Request, NonZero place.Vector
	Ports            []place.HostPort
}

// Occupants refreshes a view and returns the pods that it counts and that belong to a queue, in any
// order. It costs O(pods).
func (c *Cluster) Occupants(v *View) []Occupant {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(v)
	out := make([]Occupant, 0, len(c.pods))
	for _, p := range c.pods {
		if o, ok := p.occupant(); ok {
			out = append(out, o)
		}
	}
	return out
}

// OccupantsOf returns the pods on one node that belong to a queue, in any order.
func (c *Cluster) OccupantsOf(node string) (out []Occupant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[node]
	if n == nil {
		return nil
	}
	for p := range n.pods {
		if o, ok := p.occupant(); ok {
			out = append(out, o)
		}
	}
	return out
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
// when claims end (see Freed).
func (c *Cluster) SetClaims(gang string, claims []Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.charges(c.claims[gang], -1)
	if len(claims) == 0 {
		delete(c.claims, gang)
		return
	}
	c.claims[gang] = slices.Clone(claims)
	c.charges(claims, 1)
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
