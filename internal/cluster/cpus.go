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
	"lockstep.dev/lockstep/internal/cputopology/held"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// CPUs are those that a pod was given on its node. It is immutable.
type CPUs struct {
	// Annotation is the value of the pod's result annotation, and Result what it says.
	Annotation string
	Result     request.Result
}

// same says whether two pods were given the same; either may be nil.
func (c *CPUs) same(d *CPUs) bool {
	return c == d || c != nil && d != nil && c.Annotation == d.Annotation
}

// orParse is what a pod says it was given: c itself if that is what it says. A value that cannot be read gives nothing:
// only Lockstep can have written it, and the node's agent leaves such a pod on the shared pool.
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

// raise counts the CPUs that a pod keeps from everyone else as requested.
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

// Machine is a node's processors, as its NodeTopology says. It is immutable.
type Machine struct {
	// Layout is shared by nodes whose machines are alike. It is nil, and Fault says why, when the NodeTopology is wrong.
	Layout *allocate.Layout
	Fault  error
	// Pins are the kubelet's own.
	Pins []topologyv1alpha1.KubeletPin
	// Moved is the number of the last move of a pod that is complete.
	Moved int64
	// Closed says that no further pods are given CPUs, because the node's agent does not apply them.
	Closed bool
}

// machines are the machines by node. A machine may be known before its node is, and outlives it.
type machines struct {
	byNode map[string]*Machine

	mu      sync.Mutex // of layouts, which are made without the model's lock
	layouts map[string]*Machine
}

// layoutsMax bounds the memory of layouts, of some 100 kB each for 256 CPUs. Clusters have few kinds of machines.
const layoutsMax = 4096

func newMachines() machines {
	return machines{byNode: map[string]*Machine{}, layouts: map[string]*Machine{}}
}

// read compiles a NodeTopology, or finds that of an equal machine.
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
		known = &Machine{Moved: math.MaxInt64} // as without an agent
		known.Layout, known.Fault = held.Layout(t)
		m.layouts[string(key)] = known
	}
	moved, closed := held.Moved(t), held.Closed(t)
	if len(t.Status.KubeletPins) == 0 && moved == known.Moved && closed == known.Closed {
		return known
	}
	return &Machine{Layout: known.Layout, Fault: known.Fault, Pins: t.Status.KubeletPins, Moved: moved, Closed: closed}
}

func (m *Machine) same(o *Machine) bool {
	return m == o || m != nil && o != nil && m.Layout == o.Layout && (m.Fault == nil) == (o.Fault == nil) &&
		m.Moved == o.Moved && m.Closed == o.Closed && slices.Equal(m.Pins, o.Pins)
}

// UpsertNodeTopology takes over what is known about a node's processors. What an agent reports besides costs a comparison.
func (c *Cluster) UpsertNodeTopology(object *topologyv1alpha1.NodeTopology) {
	c.setMachine(object.Name, c.machines.read(object))
}

// DeleteNodeTopology removes it.
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

// NodeCPUs is who was given which CPUs of a node.
type NodeCPUs struct {
	Node string
	// Machine is nil while no NodeTopology is known, and for a node that does not exist.
	Machine *Machine
	// Pods are those that hold the node and were given CPUs, by their names.
	Pods map[string]PodCPUs
}

// PodCPUs is a pod that was given CPUs.
type PodCPUs struct {
	*CPUs
	// Object is the pod, or nil while it is only assumed.
	Object *corev1.Pod
}

// FollowCPUs makes Refresh tell follow about every node that it brings up to date and whose CPUs someone may hold, after
// it has. It is called before the first Refresh.
func (v *View) FollowCPUs(follow func(NodeCPUs)) { v.follow = follow }

// tellCPUs is part of Refresh.
func (c *Cluster) tellCPUs(v *View, n *node) {
	if v.follow != nil && c.pins {
		v.follow(c.cpusOf(n))
	}
}

func (c *Cluster) cpusOf(n *node) NodeCPUs {
	out := NodeCPUs{Node: n.name}
	if n.object != nil {
		out.Machine = c.machines.byNode[n.name]
	}
	if n.pinned > 0 {
		out.Pods = make(map[string]PodCPUs, n.pinned)
		for p := range n.pods {
			if p.held.cpus != nil {
				out.Pods[p.name.String()] = PodCPUs{p.held.cpus, p.held.of}
			}
		}
	}
	return out
}

// CPUsOn is who was given which CPUs of a node at this moment. The Machine is nil where nothing is known.
func (c *Cluster) CPUsOn(name string) NodeCPUs {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		return NodeCPUs{Node: name}
	}
	return c.cpusOf(n)
}

// AssumeMoved gives a pod that has a node other CPUs there, ahead of the API server. It says whether the pod is still the
// one meant and has what it was given before. The assumption ends when the watch shows it to be true, or by ForgetMoved.
func (c *Cluster) AssumeMoved(name types.NamespacedName, uid types.UID, before string, cpus *CPUs) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	if p == nil || p.object == nil || p.object.UID != uid || p.held.cpus == nil || p.held.cpus.Annotation != before || p.moving != nil {
		return false
	}
	p.moving = cpus
	c.settle(p)
	return true
}

// ForgetMoved takes an AssumeMoved back: the pod has not been written.
func (c *Cluster) ForgetMoved(name types.NamespacedName, cpus *CPUs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[name]; p != nil && p.moving == cpus && cpus != nil {
		p.moving = nil
		c.settle(p)
	}
}
