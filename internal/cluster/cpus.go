package cluster

import (
	"encoding/json"
	"math"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/request"
	cpureservation "lockstep.dev/lockstep/internal/cputopology/reservation"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// CPUs is the set of CPUs that a pod was assigned on its node. It is immutable.
type CPUs struct {
	// Annotation is the value of the pod's result annotation, and Result is its parsed form.
	Annotation string
	Result     request.Result
}

// same reports whether c and d are the same assignment; either may be nil.
func (c *CPUs) same(d *CPUs) bool {
	return c == d || c != nil && d != nil && c.Annotation == d.Annotation
}

// orParse returns the CPUs in the pod's annotation: c itself if it has that annotation. A value
// that cannot be parsed counts as no CPUs: only Lockstep can have written it, and the node's agent
// leaves such a pod in the shared pool.
func (c *CPUs) orParse(pod *corev1.Pod) *CPUs {
	value, set := pod.Annotations[topologyv1alpha1.ResultAnnotation]
	switch {
	case !set:
		return nil
	case c != nil && c.Annotation == value:
		return c
	}
	result, err := request.ParseResult(value)
	if err != nil {
		return nil
	}
	return &CPUs{Annotation: value, Result: result}
}

// raise returns the requests, with their CPUs increased to at least the number of CPUs that the pod
// has exclusively. It does not modify its arguments. c may be nil.
func (c *CPUs) raise(request, nonZero place.Vector) (place.Vector, place.Vector) {
	if c == nil {
		return request, nonZero
	}
	if milli := 1000 * int64(c.Result.Exclusive().Len()); milli > request.At(place.CPU) {
		request, nonZero = slices.Clone(request), slices.Clone(nonZero)
		request[place.CPU] = milli
		nonZero[place.CPU] = max(milli, nonZero[place.CPU])
	}
	return request, nonZero
}

// Machine describes the processors of a node, according to its NodeTopology. It is immutable.
type Machine struct {
	// Layout is shared by nodes with equal machines. If the NodeTopology is invalid, Layout is nil
	// and Fault is the reason.
	Layout *allocate.Layout
	Fault  error
	// Pins are the kubelet's own CPU assignments.
	Pins []topologyv1alpha1.KubeletPin
	// Moved is the sequence number of the last completed move of a pod.
	Moved int64
	// KubeletPins means that the kubelet pins Guaranteed containers with a whole number of CPUs
	// itself, and that its choice stands.
	KubeletPins bool
	// Closed means that no further pods are assigned CPUs, because the node's agent does not apply
	// the assignments.
	Closed bool
}

// machines holds the machine of each node. A machine may be known before its node is, and outlives
// the node.
type machines struct {
	byNode map[string]*Machine

	mu      sync.Mutex // guards layouts, which are computed without the model's lock
	layouts map[string]*Machine
}

// layoutsMax is the maximum number of cached layouts, of about 100 kB each for 256 CPUs. Clusters
// have few kinds of machines.
const layoutsMax = 4096

func newMachines() machines {
	return machines{byNode: map[string]*Machine{}, layouts: map[string]*Machine{}}
}

// read compiles a NodeTopology, or returns the machine of an equal one.
func (m *machines) read(t *topologyv1alpha1.NodeTopology) *Machine {
	key, err := json.Marshal([]any{t.Spec, t.Status.Reserved})
	if err != nil {
		return &Machine{Fault: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.layouts[string(key)]
	if known == nil {
		if len(m.layouts) >= layoutsMax {
			clear(m.layouts)
		}
		known = &Machine{Moved: math.MaxInt64} // the value without an agent
		known.Layout, known.Fault = cpureservation.Layout(t)
		m.layouts[string(key)] = known
	}
	moved, closed := cpureservation.Moved(t), cpureservation.Closed(t)
	pins := t.Status.Kubelet != nil && t.Status.Kubelet.Pins == topologyv1alpha1.PinsRespected
	if len(t.Status.KubeletPins) == 0 && moved == known.Moved && closed == known.Closed && !pins {
		return known
	}
	return &Machine{Layout: known.Layout, Fault: known.Fault, Pins: t.Status.KubeletPins, Moved: moved, KubeletPins: pins, Closed: closed}
}

func (m *Machine) same(o *Machine) bool {
	return m == o || m != nil && o != nil && m.Layout == o.Layout && (m.Fault == nil) == (o.Fault == nil) &&
		m.Moved == o.Moved && m.Closed == o.Closed && m.KubeletPins == o.KubeletPins && slices.Equal(m.Pins, o.Pins)
}

// UpsertNodeTopology stores the API server's state of a node's processors. An agent's report
// without relevant changes costs a comparison.
func (c *Cluster) UpsertNodeTopology(object *topologyv1alpha1.NodeTopology) {
	c.setMachine(object.Name, c.machines.read(object))
}

// DeleteNodeTopology removes the machine of a node.
func (c *Cluster) DeleteNodeTopology(name string) { c.setMachine(name, nil) }

func (c *Cluster) setMachine(node string, m *Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.same(c.machines.byNode[node]) {
		return
	}
	if m == nil {
		delete(c.machines.byNode, node)
	} else {
		c.machines.byNode[node] = m
		c.pins = true
	}
	if n := c.nodes[node]; n != nil {
		c.touch(n)
		c.changed(func(ch *Changes) { ch.node(node) })
	}
}

// NodeCPUs lists the pods that were assigned CPUs on a node.
type NodeCPUs struct {
	Node string
	// Machine is nil while no NodeTopology is known, and for a node that does not exist.
	Machine *Machine
	// Policy is what the node's labels say about the CPUs of Koordinator's pods.
	Policy request.NodePolicy
	// Pods are the pods that hold the node and were assigned CPUs, by namespace/name.
	Pods map[string]PodCPUs
}

// PodCPUs is a pod that was assigned CPUs.
type PodCPUs struct {
	*CPUs
	// Object is the pod, or nil while it is only assumed.
	Object *corev1.Pod
}

// FollowCPUs makes Refresh call follow for every node that it has updated, once any machine or
// pinned pod has been seen. It must be called before the first Refresh.
func (v *View) FollowCPUs(follow func(NodeCPUs)) { v.follow = follow }

// tellCPUs calls the function of FollowCPUs for a node that Refresh has updated. The caller holds
// mu.
func (c *Cluster) tellCPUs(v *View, n *node) {
	if v.follow != nil && c.pins {
		v.follow(c.cpusOf(n))
	}
}

func (c *Cluster) cpusOf(n *node) NodeCPUs {
	out := NodeCPUs{Node: n.name}
	if n.object != nil {
		out.Machine = c.machines.byNode[n.name]
		out.Policy = request.PolicyOf(n.object.Labels)
	}
	if n.pinned > 0 {
		out.Pods = make(map[string]PodCPUs, n.pinned)
		for p := range n.pods {
			if p.reserved.cpus != nil {
				out.Pods[p.name.String()] = PodCPUs{p.reserved.cpus, p.reserved.of}
			}
		}
	}
	return out
}

// CPUsOn returns the pods that are assigned CPUs on a node at this moment. The Machine is nil if
// the node's processors are unknown.
func (c *Cluster) CPUsOn(name string) NodeCPUs {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		return NodeCPUs{Node: name}
	}
	return c.cpusOf(n)
}

// AssumeMoved assigns other CPUs to a pod that has a node, before the API server knows. It returns
// false, and does nothing, unless the pod still has that UID and the CPUs of the annotation before,
// and is not being moved already. The assumption ends when the watch shows the new CPUs, or with
// ForgetMoved.
func (c *Cluster) AssumeMoved(name types.NamespacedName, uid types.UID, before string, cpus *CPUs) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	if p == nil || p.object == nil || p.object.UID != uid || p.reserved.cpus == nil || p.reserved.cpus.Annotation != before || p.moving != nil {
		return false
	}
	p.moving = cpus
	c.settle(p)
	return true
}

// ForgetMoved reverts an AssumeMoved: the pod has not been written.
func (c *Cluster) ForgetMoved(name types.NamespacedName, cpus *CPUs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[name]; p != nil && p.moving == cpus && cpus != nil {
		p.moving = nil
		c.settle(p)
	}
}
