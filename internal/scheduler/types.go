package scheduler

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Gang is a request for nodes: pods that must be placed together. A Gang is passed to Submit and
// must not be modified afterwards. To change it, Submit a new Gang with the same Key, which
// replaces the old one.
type Gang struct {
	// Key is unique among gangs and stable across restarts, for example "job/ns/name" or
	// "podgroup/ns/name".
	Key string
	// Queue is the name of the scheduling queue whose share this gang uses.
	Queue string
	// Priority orders gangs inside a queue, higher first; Created breaks ties.
	Priority int32
	Created  time.Time
	// Since is when the gang began to wait; the zero value means when it was first submitted.
	Since time.Time
	// WaitAtMost is how long the gang waits before capacity is kept for it; 0 means as long as
	// Config.OverdueAfter says.
	WaitAtMost time.Duration
	// PriorityClass is the class that Priority comes from, if any. Classes may say that a gang
	// evicts no others.
	PriorityClass string
	// Resume means that some pods of this gang have nodes, but fewer than its minimum (after a
	// crash or the loss of a node). A gang with Resume is placed before every gang without.
	Resume bool
	// MinMember is the number of units, over all Demands, that must be placed at once; if fewer
	// fit, none is placed. Units that already have a node are not in Demands and are already
	// subtracted from MinMember.
	MinMember int
	// Surplus is the number of units above the gang's minimum. They are placed after the minimums of
	// all gangs, as far as room is left. It may be less than the number of units above MinMember: a
	// gang that has lost pods, for example, takes any of them, but needs all.
	Surplus int
	Demands []Demand
	// Outranks means that pods of the gang have nodes whose task has a lower priority than the first of
	// Demands. Such pods above the minimum may have to leave for it.
	Outranks bool
	// Near, if set, keeps the pods near each other in the network. Its field On is not used: Mates are
	// pods of the gang that may have nodes already, and the gang stays near those that do.
	Near  *place.Near
	Mates []types.NamespacedName
	// Parts are parts of the gang whose units are placed together or not at all. MinParts is the number
	// of parts of each set that must be placed at once; if fewer fit, nothing of the gang is placed.
	Parts    []Part
	MinParts []int
	// Announced is what the gang's pods will request in all, including pods that do not exist yet. If
	// that is more than the Demands request, the gang starts only if so much is free besides what is
	// promised to other gangs. The rest is then promised to this one, until Promise says otherwise.
	// A gang without Demands has no pods yet: it starts with an empty Commit.
	Announced corev1.ResourceList
	// Ahead means that the owner creates pods without nodes when Reason.Ahead asks for them.
	Ahead bool
	// Owner acts on the outcome.
	Owner Owner
}

// Part is a part of a gang: a partition of a task, or a sub-group of a PodGroup.
type Part struct {
	// Kind is what messages call such a part; "partition" by default.
	Kind string
	// Demands are indices in Gang.Demands, which have no Min.
	Demands []int
	// Size is the number of units that are placed together, and Set an index in Gang.MinParts.
	Size, Set int
	// Near and Mates are those of the part, as in Gang.
	Near  *place.Near
	Mates []types.NamespacedName
}

// Demand is a set of pods, called units, that share one pod template.
type Demand struct {
	// Template represents all pods of the demand as they will be at the API server, including the
	// defaults of a LimitRange. It is immutable and shared: equal demands should share the pointer,
	// because compiled classes are cached by pointer.
	Template *corev1.Pod
	// Rank says which demands are placed first, the lower ones, if the gang's minimum fits so.
	Rank int
	// Units are the names of the pods, either still to be created, or existing and unbound.
	Units []types.NamespacedName
	// Existing says which of Units exist as pods, if the gang has Ahead; nil means that none does.
	Existing []bool
	// Min is the number of Units that must be placed at once; if fewer fit, nothing of the gang is
	// placed.
	Min int
}

// Assignment is the node chosen for one unit.
type Assignment struct {
	Demand, Unit int
	Node         string
	// Annotations record the CPUs that the pod was given, if it requests pinned CPUs. The owner
	// writes them with the pod's create or binding.
	Annotations map[string]string
	// Assumption is the unit's assumption in the cluster model, which the owner confirms or forgets.
	Assumption cluster.Assumption
	cpus       *cluster.CPUs // the content of Annotations, decoded
}

// Owner turns placements into API writes: it creates pods already bound to their nodes, or binds
// existing pods. Both methods are called from the scheduler's goroutine and must not block.
type Owner interface {
	// Commit is called when units of the gang have been placed and are assumed in the cluster
	// model. From then on the owner is responsible for these units: each must end either as a pod
	// bound to its node, or as a call to cluster.Forget followed by a new Submit. Units of the gang
	// that were not placed (above the minimum) stay with the scheduler.
	Commit(gang *Gang, placed []Assignment)
	// Waiting is called when the gang could not be placed and the reason differs from the last
	// reason reported since the gang was submitted, or when pods are to be created (Reason.Ahead).
	Waiting(gang *Gang, why Reason)
}

// Reason says why a gang waits.
type Reason struct {
	// Code is a CamelCase word for conditions: NotEnoughResources, Unschedulable, WaitingForVolumes,
	// QueueNotFound, QueueNotLeaf, QueueClosed, QueueOverCapability, QueueOverJobs
	// or BehindFirst.
	Code string
	// Message is a sentence for users. It contains no figures that change while the cause stays the
	// same.
	Message string
	// Detail gives the current figures.
	Detail string
	// Partial means that the gang's minimum has been placed and only pods above the minimum wait.
	Partial bool
	// Announced means that Gang.Announced does not fit; the pods that exist may.
	Announced bool
	// Eviction says who leaves for the gang, or why nobody does; it is empty if no rule could allow
	// an eviction. EvictionDetail gives the current figures, too.
	Eviction, EvictionDetail string
	// Shortage is set when placement failed.
	Shortage *place.Shortage
	// Ahead lists, per demand, the units whose pods the owner is to create now, without nodes. It is
	// nil if there are none, and always without Gang.Ahead.
	Ahead [][]int
}

// Evictor owns gangs whose pods may be evicted. Its methods are called from the scheduler's
// goroutine and must not block.
type Evictor interface {
	// GangOf returns the key of the gang that a pod belongs to; ok is false for pods that the Evictor
	// does not own. The answer depends on the pod alone: it is kept until the pod changes.
	GangOf(pod *corev1.Pod) (key string, ok bool)
	// Owns reports whether the gang with this key is one of the Evictor's.
	Owns(key string) bool
	// Describe returns what is to be known before pods of a gang are evicted. ok is false if they must
	// not be.
	Describe(key string) (t GangTerms, ok bool)
	// Evict deletes pods. It is not an error if they have ended or changed meanwhile.
	Evict(Eviction)
}

// GangTerms say which pods of a gang may be evicted.
type GangTerms struct {
	Priority int32
	// MinMember and Min, by task, are the numbers of pods without which the gang cannot work. Pods
	// that have ended are subtracted.
	MinMember int
	Min       map[string]int
	// Protected means that no pods are evicted, and Cooldown for how long after its start a pod is
	// not. Pods can have both, too.
	Protected bool
	Cooldown  time.Duration
	// Preemptable means that the manifest says that pods may be evicted. Only such pods leave
	// revocable zones that close.
	Preemptable bool
	// Budget, if there is one, limits how many of the gang's pods are evicted. Pods is how many pods
	// the gang wants, without those that have ended.
	Budget *schedulingv1beta1.DisruptionBudget
	Pods   int
}

// Eviction is a request to evict pods of one gang.
type Eviction struct {
	Gang string
	Pods []PodRef
	// Whole means that all pods of the gang are evicted; otherwise pods above its minimum are.
	Whole bool
	// For is the key of the gang that gets the room, or empty if the room is for no gang. Why is the
	// rule, as the end of a sentence about the evicted gang.
	For, Why string
}

// Claimant says, for the users of a namespace, who gets the room, with a space before it; it is empty
// if nobody does.
func (x *Eviction) Claimant(namespace string) string {
	if x.For == "" {
		return ""
	}
	return " for " + GangFor(namespace, x.For)
}

// PodRef refers to a pod that exists.
type PodRef struct {
	Name types.NamespacedName
	UID  types.UID
}
