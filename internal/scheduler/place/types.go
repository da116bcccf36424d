package place

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Vector is an amount per resource dimension. Its indices are assigned by Dims. CPU is in millicores, memory and
// ephemeral storage in bytes, pods and extended resources in units. A Vector shorter than another is zero beyond its end.
type Vector []int64

// The dimensions that every Dims starts with. Extended resources follow, in the order they are first seen.
const (
	CPU = iota
	Memory
	EphemeralStorage
	Pods
	firstExtended
)

// Node is one node of a Snapshot. Labels, Taints and Object are shared with the cluster model and never modified;
// Used and Ports belong to the snapshot.
type Node struct {
	Name          string
	Labels        map[string]string
	Taints        []corev1.Taint
	Unschedulable bool
	Allocatable   Vector
	Used          Vector
	// UsedNonZero is Used with the kube-scheduler's defaults for pods without requests (Class.NonZero), for scores.
	UsedNonZero Vector
	Ports       PortSet
	// Object is the API object, for filters outside the fast path.
	Object *corev1.Node
	// Generation changes whenever the cluster model changes this node; snapshots copy only nodes whose generation differs.
	Generation int64
}

// HostPort is a port that a pod takes on its node. An empty IP means all addresses.
type HostPort struct {
	IP       string
	Protocol corev1.Protocol
	Port     int32
}

// PortSet is the set of host ports taken on a node.
type PortSet map[HostPort]int

// Class is an equivalence class of pods: all pods of a class pass the same filters and get the same scores. It is
// compiled once (NewClass) and immutable.
type Class struct {
	Request     Vector // includes one pod
	NonZero     Vector // request with the kube-scheduler's defaults for pods without requests, used in scores only
	Required    nodeaffinity.RequiredNodeAffinity
	Preferred   *nodeaffinity.PreferredSchedulingTerms // nil when there are none
	Tolerations []corev1.Toleration
	Ports       []HostPort
	// Template stands for every pod of the class; filters outside the fast path read it.
	Template *corev1.Pod
	// Rare says that the class needs the filters outside the fast path (inter-pod affinity, topology spread, volumes).
	Rare bool
	// Pins is what the class asks of its node's CPUs, to be chosen by a Pinner together with the node; nil for most.
	Pins Pins

	needs      []need
	selective  bool // has a node selector or required node affinity
	bestEffort bool // requests neither cpu nor memory
	// Classes with equal staticKey get the same answers from the filters and scores that look only at the node's
	// object; with equal key, the same nodes altogether (unless Rare).
	staticKey, key string
}

// Demand asks for Count pods of one class. Of these at least Min must be placed with the rest of the gang, or nothing is.
type Demand struct {
	Class *Class
	Count int
	Min   int
}

// Gang is placed as one transaction: at least MinMember pods in all, and each demand's Min, or none. What is above the
// minimum is placed as far as it fits. Pods that already hold a node have been subtracted from every figure.
type Gang struct {
	Key       string
	Queue     string
	Priority  int32
	Created   time.Time
	MinMember int
	Demands   []Demand
}

// Decision is the outcome for one gang. Exactly one of Placed and Shortage is set.
type Decision struct {
	// Placed has one slice per demand: the snapshot's node index of each pod placed, at most Count long.
	Placed [][]int32
	// Pins has, for each demand whose class has Pins, what each pod placed was given. It is nil when there is none.
	Pins [][]Pin
	// Shortage says why the gang's minimum could not be placed.
	Shortage *Shortage
}

// Shortage explains a gang that does not fit, in figures a user can act on. It holds no volatile node counts in its
// stable part, so that a message changes only when the cause does.
type Shortage struct {
	// Demand is the index of the demand that could not be filled to its minimum.
	Demand int
	// Wanted and Fit are numbers of pods: what the gang needed of this demand (or in all, when its demands' own minimums
	// fit), and how many would fit.
	Wanted, Fit int
	// Resource is what is short on the nodes that pass the other filters, or empty when it is not a resource that is
	// short: no node passes them.
	Resource corev1.ResourceName
	// Missing is how much of Resource is short, in its base unit (millicores, bytes, units): in all, or, when all that
	// is free would do but no node has enough of it, what the pods that do not fit ask for (Fragmented); or, when no node
	// has as much of it as one pod asks for, what the largest lacks (TooLarge).
	Missing              int64
	Fragmented, TooLarge bool
	// Rejected counts nodes by the filter that refuses one more pod, for the event's text. A node that is short of two
	// resources counts for the first.
	Rejected map[string]int
	// CPUs is set when nodes have the resources but not the CPUs that are asked for, and says which; Never when none could
	// have them even if nothing ran on it.
	CPUs  string
	Never bool
}
