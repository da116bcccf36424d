package cluster

import (
	"container/list"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Config is what a Cluster needs to know from the start.
type Config struct {
	// Dims numbers the resources; shared with whoever compiles classes. Nil makes new ones.
	Dims *place.Dims
	// Ours says whether a pod's use counts against a queue: pods that Lockstep schedules. Nil means that none does, except
	// those that were assumed.
	Ours func(*corev1.Pod) bool
}

// Cluster is the model. Its zero value is not usable; see New.
//
// The life of a pod in the model:
//
//	            Assume             Confirm               UpsertPod with a node
//	(absent) ───────────▶ assumed ─────────▶ confirmed ───────────────────────▶ observed ──▶ (absent)
//	                       │   │                │                                ▲    ▲      DeletePod, or
//	                       │   └────────────────┼── UpsertPod with a node ───────┘    │      the pod has ended
//	                       │ Forget             │ Expire: the watch is past           │
//	                       ▼                    ▼ the write and it is not there       │
//	                    (absent)             (absent) ── UpsertPod with a node ───────┘
//	                                                     placed by another, or before a restart
//
// assumed, confirmed and observed pods hold their request on their node and against their queue. What the API server
// says about a pod's node wins over an assumption. A pod that exists without a node holds nothing; it may be assumed (it
// is to be bound) like one that does not exist (it is to be created with its node).
type Cluster struct {
	dims *place.Dims
	ours func(*corev1.Pod) bool

	mu         sync.Mutex
	generation int64
	nodes      map[string]*node
	recent     *list.List // of *node, the one changed last in front
	gone       int        // nodes in recent that are only there so that views learn of their removal
	purged     int64      // the generation up to which removals are no longer in recent
	total      place.Vector
	pods       map[types.NamespacedName]*pod
	assumed    map[*pod]struct{} // those that hold by assumption
	unwritten  int               // those of assumed whose write has not been confirmed
	keepAway   int               // pods on nodes that have a required anti-affinity
	queues     map[string]*queue
	groupQueue map[types.NamespacedName]string
	groupPods  map[types.NamespacedName]map[*pod]struct{}
	priorities priorities
	machines   machines
	pins       bool // there has been a machine or a pod that holds CPUs
	changes    Changes
	listenRoom bool
	listenPods bool

	wake chan struct{}
}

// node is a node that exists, or one that does not (object is nil) but that pods name, or that views must still remove.
type node struct {
	name        string
	object      *corev1.Node
	allocatable place.Vector
	used        place.Vector
	usedNonZero place.Vector
	ports       place.PortSet
	pods        map[*pod]struct{}
	pinned      int // pods of them that hold CPUs
	generation  int64
	at          *list.Element
}

// pod is one that exists (object), or that is assumed, or both.
type pod struct {
	name   types.NamespacedName
	object *corev1.Pod
	assume *assumption
	moving *CPUs                // that the object will have by a write which was not seen yet
	group  types.NamespacedName // whose groupPods it is in, if any
	held   hold
}

// assumption is a node by decision.
type assumption struct {
	node  string
	queue string
	class *place.Class
	cpus  *CPUs // that it was given, or nil
	// uid is that of the pod assumed, empty while it has yet to be created.
	uid types.UID
	// replaces is the UID of an earlier pod of this name that the assumption is not about.
	replaces types.UID
	// version is the resource version of the write, empty until Confirm.
	version string
}

// hold is what a pod takes, and of what. Its zero value is nothing.
type hold struct {
	node             string
	queue            string // empty when it counts against none
	request, nonZero place.Vector
	ports            []place.HostPort
	of               *corev1.Pod // the state of the pod that the amounts were computed from, if any
	keepsAway        bool        // it has a required anti-affinity, which binds others
	cpus             *CPUs       // that it was given, if any
}

// same says that replacing one by the other changes nothing outside the pod.
func (h *hold) same(o *hold) bool {
	return h.node == o.node && h.queue == o.queue && slices.Equal(h.request, o.request) &&
		slices.Equal(h.nonZero, o.nonZero) && slices.Equal(h.ports, o.ports) && h.cpus.same(o.cpus)
}

type queue struct {
	object *schedulingv1beta1.Queue // nil when only pods name it
	used   place.Vector
}

// New returns an empty model.
func New(cfg Config) *Cluster {
	if cfg.Dims == nil {
		cfg.Dims = place.NewDims()
	}
	if cfg.Ours == nil {
		cfg.Ours = func(*corev1.Pod) bool { return false }
	}
	return &Cluster{
		dims:       cfg.Dims,
		ours:       cfg.Ours,
		nodes:      map[string]*node{},
		recent:     list.New(),
		pods:       map[types.NamespacedName]*pod{},
		assumed:    map[*pod]struct{}{},
		queues:     map[string]*queue{},
		groupQueue: map[types.NamespacedName]string{},
		groupPods:  map[types.NamespacedName]map[*pod]struct{}{},
		priorities: priorities{value: map[string]int32{}},
		machines:   newMachines(),
		listenRoom: true,
		listenPods: true,
		wake:       make(chan struct{}, 1),
	}
}

// Dims are the dimensions of the model's vectors.
func (c *Cluster) Dims() *place.Dims { return c.dims }

// Assume gives a pod a node ahead of the API server. When a pod of that name exists without a node, it is that pod that
// is to be bound; otherwise one is to be created. A later Assume of the same name replaces an earlier one.
func (c *Cluster) Assume(name types.NamespacedName, node, queue string, class *place.Class) {
	c.AssumePinned(name, node, queue, class, nil)
}

// AssumePinned is Assume for a pod that is given CPUs with the node.
func (c *Cluster) AssumePinned(name types.NamespacedName, node, queue string, class *place.Class, cpus *CPUs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pod(name)
	if p.assume != nil {
		c.dropAssumption(p)
	}
	a := &assumption{node: node, queue: queue, class: class, cpus: cpus}
	if o := p.object; o != nil {
		if o.Spec.NodeName == "" && !ended(o) {
			a.uid = o.UID
		} else {
			a.replaces = o.UID
		}
	}
	p.assume = a
	c.assumed[p] = struct{}{}
	c.unwritten++
	c.settle(p)
}

// Confirm says that the assumed pod was written: created with its node or bound, with the given outcome. It does nothing
// when the watch was faster, or when the assumption is gone.
func (c *Cluster) Confirm(name types.NamespacedName, uid types.UID, resourceVersion string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	if p == nil || p.assume == nil || (p.assume.uid != "" && p.assume.uid != uid) {
		return
	}
	if p.assume.version == "" {
		c.unwritten--
	}
	p.assume.uid, p.assume.version = uid, resourceVersion
}

// Forget takes an assumption back: the pod could not be written. It does nothing when the watch has shown the pod with a
// node.
func (c *Cluster) Forget(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[name]; p != nil && p.assume != nil {
		c.dropAssumption(p)
		c.settle(p)
	}
}

// Unwritten is the number of assumptions whose write has neither been confirmed nor seen.
func (c *Cluster) Unwritten() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unwritten
}

// UpsertPod takes over what the API server says about a pod.
func (c *Cluster) UpsertPod(object *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	p := c.pods[name]
	if p == nil && ended(object) {
		return
	}
	p = c.pod(name)
	old := p.object
	p.object = object
	if m := p.moving; m != nil && (old == nil || old.UID != object.UID || object.Annotations[topologyv1alpha1.ResultAnnotation] == m.Annotation) {
		p.moving = nil
	}
	if a := p.assume; a != nil && object.UID != a.replaces && (object.Spec.NodeName != "" || ended(object)) {
		c.dropAssumption(p)
	}
	c.joinGroup(p)
	c.settle(p)
	if old == nil || old.Spec.NodeName != object.Spec.NodeName || !maps.Equal(old.Labels, object.Labels) {
		c.changed(func(ch *Changes) { ch.Pods = true })
	}
}

// DeletePod removes a pod that the API server no longer has.
func (c *Cluster) DeletePod(object *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[types.NamespacedName{Namespace: object.Namespace, Name: object.Name}]
	if p == nil || p.object != nil && p.object.UID != object.UID {
		return
	}
	p.object, p.moving = nil, nil
	if a := p.assume; a != nil && a.uid == object.UID {
		c.dropAssumption(p)
	}
	c.joinGroup(p)
	c.settle(p)
	c.changed(func(ch *Changes) { ch.Pods = true })
}

// Expire drops the confirmed assumptions that the watch is past: the pod was written, and gone again before the watch
// showed it. seen is the resource version that the watch of pods has reached; newer compares two.
func (c *Cluster) Expire(seen string, newer func(a, b string) bool, exists func(types.NamespacedName) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.assumed {
		if v := p.assume.version; v != "" && p.object == nil && newer(seen, v) && !exists(p.name) {
			c.dropAssumption(p)
			c.settle(p)
		}
	}
}

// Pod is what the model knows of a pod: the object (nil when it is only assumed) and the node it holds, or empty.
func (c *Cluster) Pod(name types.NamespacedName) (object *corev1.Pod, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	if p == nil {
		return nil, ""
	}
	return p.object, p.held.node
}

// PodsOn returns the pods that hold room on a node. One that is only assumed is made from its class's template.
func (c *Cluster) PodsOn(name string) []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		return nil
	}
	out := make([]*corev1.Pod, 0, len(n.pods))
	for p := range n.pods {
		o := p.object
		if o == nil || o.Spec.NodeName == "" {
			o = imagine(p, o)
		}
		out = append(out, o)
	}
	return out
}

// imagine is the assumed pod as it will be.
func imagine(p *pod, object *corev1.Pod) *corev1.Pod {
	if object == nil {
		object = p.assume.class.Template
	}
	o := *object
	o.Namespace, o.Name, o.UID = p.name.Namespace, p.name.Name, p.assume.uid
	if o.UID == "" {
		o.UID = types.UID("assumed/" + p.name.String()) // node infos tell pods apart by UID
	}
	o.Spec.NodeName = p.assume.node
	return &o
}

// pod finds or makes the entry of a name; settle removes it when nothing is left in it.
func (c *Cluster) pod(name types.NamespacedName) *pod {
	p := c.pods[name]
	if p == nil {
		p = &pod{name: name}
		c.pods[name] = p
	}
	return p
}

func (c *Cluster) dropAssumption(p *pod) {
	if p.assume.version == "" {
		c.unwritten--
	}
	p.assume = nil
	delete(c.assumed, p)
}

// settle makes what the pod holds follow from what it is. Every transition ends here.
func (c *Cluster) settle(p *pod) {
	if want := c.holding(p); p.held.same(&want) {
		p.held.of = want.of
	} else {
		c.charge(p, -1)
		p.held = want
		c.charge(p, 1)
	}
	if p.assume == nil && (p.object == nil || ended(p.object)) {
		c.leaveGroup(p)
		delete(c.pods, p.name)
	}
}

// holding is what the pod should hold.
func (c *Cluster) holding(p *pod) hold {
	switch {
	case p.object != nil && p.object.Spec.NodeName != "" && !ended(p.object):
		h := hold{node: p.object.Spec.NodeName, queue: c.queueOf(p), of: p.object, cpus: p.moving}
		if h.cpus == nil {
			h.cpus = p.held.cpus.orParse(p.object)
		}
		if old := p.held; old.of != nil && sameRequests(old.of, p.object) && h.cpus.same(old.cpus) {
			h.request, h.nonZero, h.ports, h.keepsAway = old.request, old.nonZero, old.ports, old.keepsAway
			return h
		}
		h.keepsAway = keepsAway(p.object)
		h.request, h.nonZero = c.dims.PodVector(p.object)
		h.request, h.nonZero = h.cpus.raise(h.request, h.nonZero)
		h.ports = place.PodPorts(p.object)
		return h
	case p.assume != nil:
		a := p.assume
		h := hold{
			node: a.node, queue: a.queue, ports: a.class.Ports, keepsAway: keepsAway(a.class.Template), cpus: a.cpus,
		}
		h.request, h.nonZero = h.cpus.raise(a.class.Request, a.class.NonZero)
		return h
	}
	return hold{}
}

// sameRequests says cheaply that two states of a pod take the same: nearly all updates of a bound pod are of its status,
// and the informer shares equal lists of containers. False means maybe not.
func sameRequests(a, b *corev1.Pod) bool {
	return a == b || a.UID == b.UID && sameList(a.Spec.Containers, b.Spec.Containers) &&
		sameList(a.Spec.InitContainers, b.Spec.InitContainers) && a.Spec.Resources == nil && b.Spec.Resources == nil &&
		len(a.Spec.Overhead) == 0 && len(b.Spec.Overhead) == 0
}

func sameList(a, b []corev1.Container) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// queueOf is the queue that a bound pod counts against: the one it names itself, its PodGroup's, the one it was assumed
// for; else the default. Pods of other schedulers count against none.
func (c *Cluster) queueOf(p *pod) string {
	if q := QueueOf(p.object); q != "" && c.ours(p.object) {
		return q
	}
	if g, ok := GroupOf(p.object); ok && c.groupQueue[g] != "" {
		return c.groupQueue[g]
	}
	if p.held.queue != "" {
		return p.held.queue
	}
	if c.ours(p.object) {
		return schedulingv1beta1.DefaultQueue
	}
	return ""
}

// charge adds (sign 1) or takes back (sign -1) what the pod holds.
func (c *Cluster) charge(p *pod, sign int64) {
	h := &p.held
	if h.node == "" {
		return
	}
	n := c.node(h.node)
	n.used = n.used.Plus(h.request, sign)
	n.usedNonZero = n.usedNonZero.Plus(h.nonZero, sign)
	if h.keepsAway {
		c.keepAway += int(sign)
	}
	if h.cpus != nil {
		n.pinned += int(sign)
		c.pins = true
	}
	for _, port := range h.ports {
		if n.ports == nil {
			n.ports = place.PortSet{}
		}
		if n.ports[port] += int(sign); n.ports[port] == 0 {
			delete(n.ports, port)
		}
	}
	if sign > 0 {
		n.pods[p] = struct{}{}
	} else {
		delete(n.pods, p)
	}
	c.touch(n)
	if h.queue != "" {
		q := c.queue(h.queue)
		q.used = q.used.Plus(h.request, sign)
		c.dropQueueIfUnused(h.queue)
	}
	if sign < 0 {
		c.changed(func(ch *Changes) {
			ch.node(h.node)
			ch.Queues = true
		})
		c.dropNodeIfUnused(n)
	}
}

func (c *Cluster) joinGroup(p *pod) {
	var g types.NamespacedName
	if p.object != nil {
		g, _ = GroupOf(p.object)
	}
	if g == p.group {
		return
	}
	c.leaveGroup(p)
	if g.Name == "" {
		return
	}
	p.group = g
	if c.groupPods[g] == nil {
		c.groupPods[g] = map[*pod]struct{}{}
	}
	c.groupPods[g][p] = struct{}{}
}

func (c *Cluster) leaveGroup(p *pod) {
	if p.group.Name == "" {
		return
	}
	delete(c.groupPods[p.group], p)
	if len(c.groupPods[p.group]) == 0 {
		delete(c.groupPods, p.group)
	}
	p.group = types.NamespacedName{}
}

func keepsAway(o *corev1.Pod) bool {
	a := o.Spec.Affinity
	return a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}

// KeepingAway is the number of pods on nodes that have a required anti-affinity: while there are any, pods without one
// may be refused by nodes too.
func (c *Cluster) KeepingAway() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keepAway
}

func ended(o *corev1.Pod) bool {
	return o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
}
