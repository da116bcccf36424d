package place

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Vector is an amount per resource dimension. Dims assigns the indices. CPU is in millicores,
// memory and ephemeral storage in bytes, pods and extended resources in units. Dimensions beyond
// the end of a Vector are zero.
type Vector []int64

// The dimensions that every Dims starts with. Extended resources follow, in the order in which they
// are first seen.
const (
	CPU = iota
	Memory
	EphemeralStorage
	Pods
	firstExtended
)

// Node is one node of a Snapshot. Labels, Taints and Object are shared with the cluster model and
// never modified; Used and Ports belong to the snapshot.
type Node struct {
	Name          string
	Labels        map[string]string
	Taints        []corev1.Taint
	Unschedulable bool
	Allocatable   Vector
	Used          Vector
	// UsedNonZero is Used with the kube-scheduler's defaults for containers without requests
	// (Class.NonZero). It is used in scores only.
	UsedNonZero Vector
	Ports       PortSet
	// Standing is what is known of the node beside its object and its pods.
	Standing Standing
	// Object is the API object, for filters outside the fast path.
	Object *corev1.Node
	// Generation changes whenever the cluster model changes this node. Snapshots copy only nodes
	// whose generation differs.
	Generation int64
}

// Standing is what the configuration of the scheduler, and measurements, say of a node. It is empty
// for most nodes.
type Standing struct {
	// Zone is the revocable zone of the node: only pods that allow it are placed on the node, and
	// prefer it to other nodes. Closed means that the zone takes no pods at present.
	Zone   string
	Closed bool
	// Overused means that the node is used so much that it takes no more pods.
	Overused bool
	// Score is added to the score of the node for every pod.
	Score int64
}

// HostPort is a port that a pod occupies on its node. An empty IP means all addresses.
type HostPort struct {
	IP       string
	Protocol corev1.Protocol
	Port     int32
}

// PortSet is the set of host ports occupied on a node; the value is the number of pods that use the
// port.
type PortSet map[HostPort]int

// Class is an equivalence class of pods: all pods of a class pass the same filters and get the same
// scores. NewClass compiles it once; afterwards it is immutable.
type Class struct {
	Request Vector // includes one pod in dimension Pods
	// NonZero is the request with the kube-scheduler's defaults for containers without requests. It
	// is used in scores only.
	NonZero     Vector
	Required    nodeaffinity.RequiredNodeAffinity
	Preferred   *nodeaffinity.PreferredSchedulingTerms // nil when there are none
	Tolerations []corev1.Toleration
	Ports       []HostPort
	// Template represents every pod of the class. Filters outside the fast path read it.
	Template *corev1.Pod
	// Rare means that the class needs the filters outside the fast path (inter-pod affinity,
	// topology spread, volumes).
	Rare bool
	// soft means that the class is Rare for its preferences only: without a RareFilter they do not count.
	soft bool
	// Pins is the class's request for CPUs, which a Pinner chooses together with the node. It is
	// nil for most classes.
	Pins Pins

	// zones are the revocable zones whose nodes the pods may use, as schedulingv1beta1.ZonesOf
	// returns them.
	zones      string
	needs      []need
	selective  bool // has a node selector or required node affinity
	bestEffort bool // requests neither cpu nor memory
	// Classes with equal staticKey get the same answers from the filters and scores that depend
	// only on the node's object. Classes with equal key get the same nodes altogether (unless they
	// are Rare).
	staticKey, key string
}

// Demand asks for Count pods of one class. At least Min of them must be placed together with the
// rest of the gang; otherwise nothing of the gang is placed.
type Demand struct {
	Class *Class
	Count int
	Min   int
}

// Gang is placed as one transaction: at least MinMember pods in all and at least Min pods of each
// demand, or none. Pods above the minimum are placed as far as they fit. Pods that already have a
// node are already subtracted from every figure.
type Gang struct {
	Key       string
	Queue     string
	MinMember int
	// Most bounds how many pods are placed, beside the minimum; 0 means that there is no bound.
	Most    int
	Demands []Demand
	// Ranks, if not nil, has a number for each demand: those with lower ones are placed first, if the
	// minimum fits so. It has no effect with Near or Parts.
	Ranks []int
	// Near, if set, keeps the pods near each other.
	Near *Near
	// Parts are placed whole or not at all; MinParts is how many of each set the minimum needs.
	Parts    []Part
	MinParts []int
}

// Decision is the outcome for one gang. Exactly one of Placed and Shortage is set.
type Decision struct {
	// Placed has one slice per demand, at most Count long: the node index in the snapshot of each
	// pod placed.
	Placed [][]int32
	// Pins has, for each demand whose class has Pins, the CPUs of each pod placed. It is nil if no
	// demand has Pins.
	Pins [][]Pin
	// Shortage says why the gang's minimum could not be placed.
	Shortage *Shortage
}

// Shortage explains why a gang does not fit, in figures that a user can act on. Its stable part
// contains no volatile node counts, so that a message changes only when the cause changes.
type Shortage struct {
	// Demand is the index of the demand that could not be filled to its minimum.
	Demand int
	// Wanted is the number of pods that the gang needed of this demand (or in all, if the minimums
	// of all demands fit). Fit is the number of pods that would fit.
	Wanted, Fit int
	// Resource is the resource that is short on the nodes that pass the other filters. It is empty
	// if no resource is short: then no node passes the other filters.
	Resource corev1.ResourceName
	// Missing is the amount of Resource that is short, in its base unit (millicores, bytes, units).
	// By default it is the shortage over all nodes. With Fragmented, the free amount would be
	// enough in all but no single node has enough, and Missing is the total request of the pods
	// that do not fit. With TooLarge, no node is as large as one pod's request, and Missing is how
	// much the largest node lacks.
	Missing              int64
	Fragmented, TooLarge bool
	// Rejected counts the nodes per filter that refuses one more pod, for the event's text. A node
	// that is short of two resources counts for the first.
	Rejected map[string]int
	// CPUs is set if nodes have the resources but not the CPUs that the pods ask for, and describes
	// those CPUs. Never means that no node could provide them even if nothing ran on it.
	CPUs  string
	Never bool
	// Domain is set if the gang would fit, but not into one domain of the network.
	Domain *NoDomain
	// Parts is set if not enough parts of the gang have room.
	Parts *NoParts
}
