package scheduler

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	// Resume means that some pods of this gang have nodes, but fewer than its minimum (after a
	// crash or the loss of a node). A gang with Resume is placed before every gang without.
	Resume bool
	// MinMember is the number of units, over all Demands, that must be placed at once; if fewer
	// fit, none is placed. Units that already have a node are not in Demands and are already
	// subtracted from MinMember.
	MinMember int
	Demands   []Demand
	// Owner acts on the outcome.
	Owner Owner
}

// Demand is a set of pods, called units, that share one pod template.
type Demand struct {
	// Template represents all pods of the demand as they will be at the API server, including the
	// defaults of a LimitRange. It is immutable and shared: equal demands should share the pointer,
	// because compiled classes are cached by pointer.
	Template *corev1.Pod
	// Units are the names of the pods, either still to be created, or existing and unbound.
	Units []types.NamespacedName
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
	// reason reported since the gang was submitted.
	Waiting(gang *Gang, why Reason)
}

// Reason says why a gang waits.
type Reason struct {
	// Code is a CamelCase word for conditions: NotEnoughResources, Unschedulable, QueueNotFound,
	// QueueNotLeaf, QueueClosed or QueueOverCapability.
	Code string
	// Message is a sentence for users. It contains no figures that change while the cause stays the
	// same.
	Message string
	// Detail gives the current figures.
	Detail string
	// Partial means that the gang's minimum has been placed and only pods above the minimum wait.
	Partial bool
	// Shortage is set when placement failed.
	Shortage *place.Shortage
}
