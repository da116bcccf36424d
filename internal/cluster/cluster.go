package cluster

import (
	"cmp"
	"container/list"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/scheduler/network"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Config configures a Cluster.
type Config struct {
	// Dims numbers the resources, and is shared with the code that compiles classes. Nil creates a
	// new one.
	Dims *place.Dims
	// Ours reports whether a pod's use counts against a queue: true for pods that Lockstep
	// schedules. If Ours is nil, only assumed pods and pods of a PodGroup that the model knows
	// count.
	Ours func(*corev1.Pod) bool
	// NetworkLabels are the labels of nodes that divide the nodes that no HyperNode contains into
	// domains, the lowest tier first.
	NetworkLabels []string
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
// Assumed, confirmed and observed pods have a reservation on their node and of their queue. The API
// server's node of a pod overrides an assumption. A pod that exists without a node has no
// reservation; it may be assumed (and is then bound), like a pod that does not exist (and is then
// created with its node).
type Cluster struct {
	dims *place.Dims
	ours func(*corev1.Pod) bool

	mu         sync.Mutex
	generation int64
	// occupations is the number of changes of pods on nodes, also of those that change no reservation.
	occupations int64
	nodes       map[string]*node
	recent      *list.List // of *node, most recently changed first
	// gone is the number of entries of recent without a node object. They are kept so that views
	// learn of the removal.
	gone    int
	purged  int64 // removals up to this generation are no longer in recent
	total   place.Vector
	pods    map[types.NamespacedName]*pod
	assumed map[*pod]struct{} // pods that have an assumption
	// assumptions is the number of assumptions made so far.
	assumptions Assumption
	claims      map[string][]Claim // by gang
	antiAffine  int                // pods on nodes that have a required anti-affinity
	queues      map[string]*queue
	users       map[string]string // whose namespaces are, as far as they say
	// usersVersion is the number of changes of users.
	usersVersion int64
	groups       podGroups
	priorities   priorities
	machines     machines
	// network is the tree of domains of the nodes.
	network *network.Model
	// standing returns what is known of a node beside its object and its pods.
	standing   func(*corev1.Node) place.Standing
	pins       bool // a machine, or a pod that was assigned CPUs, has been seen
	changes    Changes
	listenRoom bool
	listenPods bool

	wake chan struct{}
}

// node is a node that exists. If object is nil, the node does not exist, but pods name it or views
// must still remove it.
type node struct {
	name        string
	object      *corev1.Node
	allocatable place.Vector
	standing    place.Standing
	used        place.Vector
	usedNonZero place.Vector
	ports       place.PortSet
	pods        map[*pod]struct{}
	pinned      int // number of pods that were assigned CPUs
	// What is kept for gangs that wait for pods on the node to leave.
	claimed, claimedNonZero place.Vector
	claimedPorts            place.PortSet
	generation              int64
	occupied                int64 // value of Cluster.occupations when the node's pods last changed
	at                      *list.Element
}

// pod is a pod that exists (object), is assumed (assume), or both.
type pod struct {
	name     types.NamespacedName
	object   *corev1.Pod
	assume   *assumption
	moving   *CPUs                // CPUs of AssumeMoved that the watch has not shown; nil for none
	group    types.NamespacedName // the pod's PodGroup in podGroups, if any
	reserved reservation
	known    *Occupant // the pod as Occupants, or nil if it has to be made
}

// assumedBy reports whether the pod has this assumption, or any if which is 0. p may be nil.
func (p *pod) assumedBy(which Assumption) bool {
	return p != nil && p.assume != nil && (which == 0 || p.assume.id == which)
}

// assumption is a decision of the scheduler that the watch has not shown.
type assumption struct {
	id    Assumption
	node  string
	queue string
	gang  string // key of the gang that the pod was placed with
	class *place.Class
	cpus  *CPUs // CPUs assigned to the pod, or nil
	// uid is the UID of the assumed pod, or empty while the pod has yet to be created.
	uid types.UID
	// replaces is the UID of an earlier pod of this name, to which the assumption does not apply.
	replaces types.UID
	// version is the resource version of the write, or empty until Confirm.
	version string
}

// reservation is the resources that a pod takes on its node and of its queue. The zero value takes
// nothing.
type reservation struct {
	node             string
	queue            string // empty if the pod counts against no queue
	job              string // key of the gang of the pod's Job, if it is one of a Job
	request, nonZero place.Vector
	ports            []place.HostPort
	of               *corev1.Pod // the state of the pod that the amounts were computed from, if any
	keepsAway        bool        // the pod has a required anti-affinity, which restricts other pods
	cpus             *CPUs       // CPUs assigned to the pod, if any
	priority         int32
}

// same reports whether r and o take the same resources from the same node and queue.
func (r *reservation) same(o *reservation) bool {
	return r.node == o.node && r.queue == o.queue && r.job == o.job && slices.Equal(r.request, o.request) &&
		slices.Equal(r.nonZero, o.nonZero) && slices.Equal(r.ports, o.ports) && r.cpus.same(o.cpus)
}

type queue struct {
	object *schedulingv1beta1.Queue // nil if only pods name the queue
	used   place.Vector
	pods   map[int32]int // number of pods with nodes, by priority
	// jobs is the number of pods with nodes by the key of their job's gang, and namespaces is what the
	// pods of each namespace hold, if the queue is shared (sharedBy).
	jobs       map[string]int
	namespaces map[string]place.Vector
	sharedBy   string // ByNamespace, ByUser, or empty
}

// New returns an empty model.
func New(cfg Config) *Cluster {
	cfg.Dims = cmp.Or(cfg.Dims, place.NewDims())
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
		claims:     map[string][]Claim{},
		queues:     map[string]*queue{},
		users:      map[string]string{},
		groups:     podGroups{queue: map[types.NamespacedName]string{}, pods: map[types.NamespacedName]map[*pod]struct{}{}},
		priorities: priorities{value: map[string]int32{}, never: map[string]bool{}},
		machines:   newMachines(),
		network:    network.New(cfg.NetworkLabels),
		standing:   func(*corev1.Node) place.Standing { return place.Standing{} },
		listenRoom: true,
		listenPods: true,
		wake:       make(chan struct{}, 1),
	}
}

// Dims returns the dimensions of the model's vectors.
func (c *Cluster) Dims() *place.Dims { return c.dims }

// Assumption identifies one assumption of a pod, so that a late answer to the write of an earlier
// pod does not end the assumption of a later pod of the same name. The zero value stands for the
// pod's present assumption.
type Assumption uint64

// Assume assigns a pod to a node before the API server knows. If a pod of that name exists without
// a node, Assume is about that pod, which is to be bound; otherwise a pod is to be created. A later
// Assume of the same name replaces an earlier one. gang is the key of the pod's gang. cpus is nil
// unless the pod is assigned CPUs together with the node.
func (c *Cluster) Assume(name types.NamespacedName, node, queue, gang string, class *place.Class, cpus *CPUs) Assumption {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pod(name)
	if p.assume != nil {
		c.dropAssumption(p)
	}
	c.assumptions++
	a := &assumption{id: c.assumptions, node: node, queue: queue, gang: gang, class: class, cpus: cpus}
	if o := p.object; o != nil {
		if o.Spec.NodeName == "" && !ended(o) {
			a.uid = o.UID
		} else {
			a.replaces = o.UID
		}
	}
	p.assume = a
	c.assumed[p] = struct{}{}
	c.settle(p)
	return a.id
}

// Confirm records that the assumed pod was written, by a create with its node or a binding, with
// the resulting UID and resource version. It does nothing if the pod no longer has the assumption,
// for example because the watch was faster, or if the assumption is for another UID.
func (c *Cluster) Confirm(name types.NamespacedName, which Assumption, uid types.UID, resourceVersion string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	if !p.assumedBy(which) || (p.assume.uid != "" && p.assume.uid != uid) {
		return
	}
	p.assume.uid, p.assume.version = uid, resourceVersion
}

// Forget removes the assumption of a pod that could not be written. It does nothing if the pod no
// longer has the assumption, for example because the watch has shown the pod with a node.
func (c *Cluster) Forget(name types.NamespacedName, which Assumption) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[name]; p.assumedBy(which) {
		c.dropAssumption(p)
		c.settle(p)
	}
}

// UpsertPod stores the API server's state of a pod.
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
	c.groups.join(p)
	c.settle(p)
	if old == nil || old.Spec.NodeName != object.Spec.NodeName || !maps.Equal(old.Labels, object.Labels) {
		c.changed(func(ch *Changes) { ch.Pods = true })
	}
}

// DeletePod removes a pod that no longer exists in the API server.
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
	c.groups.join(p)
	c.settle(p)
	c.changed(func(ch *Changes) { ch.Pods = true })
}

// Expire drops the confirmed assumptions of pods that were written, and deleted again before the
// watch showed them. seen is the resource version that the watch of pods has reached. exists
// reports whether a pod is in the cache.
func (c *Cluster) Expire(seen string, exists func(types.NamespacedName) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.assumed {
		if v := p.assume.version; v != "" && p.object == nil && !informer.Older(seen, v) && !exists(p.name) {
			c.dropAssumption(p)
			c.settle(p)
		}
	}
}

// Pod returns the model's state of a pod: the object (nil if the pod is only assumed) and the name
// of its node, or an empty name.
func (c *Cluster) Pod(name types.NamespacedName) (object *corev1.Pod, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	if p == nil {
		return nil, ""
	}
	return p.object, p.reserved.node
}

// PodsOn returns the pods that have reservations on a node. For an assumed pod that does not exist
// it returns a pod made from its class's template.
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

// imagine returns the assumed pod as it will be once written. object is the existing pod without a
// node, or nil.
func imagine(p *pod, object *corev1.Pod) *corev1.Pod {
	object = cmp.Or(object, p.assume.class.Template)
	o := *object
	o.Namespace, o.Name, o.UID = p.name.Namespace, p.name.Name, p.assume.uid
	if o.UID == "" {
		o.UID = types.UID("assumed/" + p.name.String()) // node infos distinguish pods by UID
	}
	o.Spec.NodeName = p.assume.node
	return &o
}

// pod returns the entry of a name, and creates it if there is none; settle removes an empty entry.
func (c *Cluster) pod(name types.NamespacedName) *pod {
	p := c.pods[name]
	if p == nil {
		p = &pod{name: name}
		c.pods[name] = p
	}
	return p
}

func (c *Cluster) dropAssumption(p *pod) {
	p.assume = nil
	delete(c.assumed, p)
}

// settle recomputes the pod's reservation. Every transition ends here.
func (c *Cluster) settle(p *pod) {
	p.known = nil
	if want := c.reservationOf(p); p.reserved.same(&want) {
		p.reserved.of = want.of
		c.setPriority(p, want.priority)
		if n := c.nodes[want.node]; n != nil {
			c.occupy(n)
		}
	} else {
		c.charge(p, -1)
		p.reserved = want
		c.charge(p, 1)
	}
	if p.assume == nil && (p.object == nil || ended(p.object)) {
		c.groups.leave(p)
		delete(c.pods, p.name)
	}
}

// reservationOf computes the reservation that the pod should have.
func (c *Cluster) reservationOf(p *pod) reservation {
	switch {
	case p.object != nil && p.object.Spec.NodeName != "" && !ended(p.object):
		r := reservation{node: p.object.Spec.NodeName, queue: c.queueOf(p), of: p.object, cpus: p.moving, priority: c.priorityOf(p.object)}
		r.job = c.jobOf(p)
		if r.cpus == nil {
			r.cpus = p.reserved.cpus.orParse(p.object)
		}
		if old := p.reserved; old.of != nil && sameRequests(old.of, p.object) && r.cpus.same(old.cpus) {
			r.request, r.nonZero, r.ports, r.keepsAway = old.request, old.nonZero, old.ports, old.keepsAway
			return r
		}
		r.keepsAway = keepsAway(p.object)
		r.request, r.nonZero = c.dims.PodVector(p.object)
		r.request, r.nonZero = r.cpus.raise(r.request, r.nonZero)
		r.ports = place.PodPorts(p.object)
		return r
	case p.assume != nil:
		a := p.assume
		r := reservation{
			node: a.node, queue: a.queue, ports: a.class.Ports, keepsAway: keepsAway(a.class.Template), cpus: a.cpus,
			priority: c.priorityOf(a.class.Template),
		}
		if strings.HasPrefix(a.gang, JobPrefix) {
			r.job = a.gang
		}
		r.request, r.nonZero = r.cpus.raise(a.class.Request, a.class.NonZero)
		return r
	}
	return reservation{}
}

// sameRequests reports, by a cheap check, whether two states of a pod certainly have the same
// requests. Nearly all updates of a bound pod change only its status, and the informer shares equal
// lists of containers.
func sameRequests(a, b *corev1.Pod) bool {
	return a == b || a.UID == b.UID && !resizes(a) && !resizes(b) && sameList(a.Spec.Containers, b.Spec.Containers) &&
		sameList(a.Spec.InitContainers, b.Spec.InitContainers) && a.Spec.Resources == nil && b.Spec.Resources == nil &&
		len(a.Spec.Overhead) == 0 && len(b.Spec.Overhead) == 0
}

// resizes reports whether a pod's status says what the kubelet has given it, which may differ from its
// spec: of such pods, requests change with the status.
func resizes(p *corev1.Pod) bool {
	return p.Status.Resources != nil || slices.ContainsFunc(p.Status.ContainerStatuses, hasResources) ||
		slices.ContainsFunc(p.Status.InitContainerStatuses, hasResources)
}

func hasResources(c corev1.ContainerStatus) bool { return c.Resources != nil }

func sameList(a, b []corev1.Container) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// queueOf returns the queue that a bound pod counts against: the queue that the pod names itself,
// if Ours is true for the pod; else the queue of its PodGroup; else the queue of its present
// reservation; else the default queue, if Ours is true for the pod; else none.
func (c *Cluster) queueOf(p *pod) string {
	if q := QueueOf(p.object); q != "" && c.ours(p.object) {
		return q
	}
	if g, ok := schedulingv1beta1.GroupOf(p.object); ok && c.groups.queue[g] != "" {
		return c.groups.queue[g]
	}
	if p.reserved.queue != "" {
		return p.reserved.queue
	}
	if c.ours(p.object) {
		return schedulingv1beta1.DefaultQueue
	}
	return ""
}

// charge adds the pod's reservation to its node and queue (sign 1) or removes it (sign -1).
func (c *Cluster) charge(p *pod, sign int64) {
	r := &p.reserved
	if r.node == "" {
		return
	}
	n := c.node(r.node)
	n.used = n.used.Plus(r.request, sign)
	n.usedNonZero = n.usedNonZero.Plus(r.nonZero, sign)
	if r.keepsAway {
		c.antiAffine += int(sign)
	}
	if r.cpus != nil {
		n.pinned += int(sign)
		c.pins = true
	}
	for _, port := range r.ports {
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
	c.occupy(n)
	if r.queue != "" {
		c.queue(r.queue).charge(p, sign)
		c.dropQueueIfUnused(r.queue)
	}
	if sign < 0 {
		c.changed(func(ch *Changes) {
			ch.node(r.node)
			ch.Queues = true
		})
		c.dropNodeIfUnused(n)
	}
}

func keepsAway(o *corev1.Pod) bool {
	a := o.Spec.Affinity
	return a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}

// AntiAffinityPods returns the number of pods with a required anti-affinity that have a node. While
// there are any, nodes may also refuse pods without an anti-affinity.
func (c *Cluster) AntiAffinityPods() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.antiAffine
}

func ended(o *corev1.Pod) bool {
	return o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
}
