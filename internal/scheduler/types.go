package scheduler

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Gang is a request for nodes: pods that are to be placed together. It is handed over with Submit and must not be
// modified afterwards; to change it, Submit a new one with the same Key, which replaces it.
type Gang struct {
	// Key is unique among gangs and stable across restarts, for example "job/ns/name" or "podgroup/ns/name".
	Key string
	// Queue is the name of the scheduling queue whose share this gang uses.
	Queue string
	// Priority orders gangs inside a queue, higher first; Created breaks ties.
	Priority int32
	Created  time.Time
	// Resume says that part of this gang already holds nodes below its minimum (a crash, a lost node): it is placed
	// before every gang that holds nothing.
	Resume bool
	// MinMember is how many of Demands' units must be placed at once, or none is. Units that already hold a node are
	// not part of Demands and have been subtracted.
	MinMember int
	Demands   []Demand
	// Owner acts on the outcome.
	Owner Owner
}

// Demand is a set of units that share one pod template.
type Demand struct {
	// Template stands for all pods of the demand, as they will be at the API server (defaults of a LimitRange
	// included). Immutable and shared: equal demands should share the pointer, which is what classes are cached by.
	Template *corev1.Pod
	// Units are the pods' names: to be created, or existing and unbound.
	Units []types.NamespacedName
	// Min is how many of Units must be placed at once, or none of the gang is.
	Min int
}

// Assignment gives one unit its node.
type Assignment struct {
	Demand, Unit int
	Node         string
	// Annotations say which CPUs the pod was given, if it asked for any. They are part of the create, or of the binding.
	Annotations map[string]string
	cpus        *cluster.CPUs // what Annotations say
}

// Owner turns placements into API writes: it creates the pods bound, or binds existing ones. Both methods are called
// from the scheduler's goroutine and must not block.
type Owner interface {
	// Commit is called when units of the gang have been placed and are assumed in the cluster model. The owner now
	// answers for these units: each ends as a pod with that node, or as a call to cluster.Forget and a new Submit.
	// Units of the gang that were not placed (above the minimum) stay with the scheduler.
	Commit(gang *Gang, placed []Assignment)
	// Waiting is called when the gang could not be placed and the reason differs from the last one told since it was
	// submitted.
	Waiting(gang *Gang, why Reason)
}

// Reason is why a gang waits.
type Reason struct {
	// Code is a CamelCase word for conditions: NotEnoughResources, QueueNotFound, QueueClosed, QueueOverCapability,
	// QueueOverShare, Unschedulable.
	Code string
	// Message is a sentence for people. It contains no figures that change while the cause stays the same.
	Message string
	// Detail adds the figures of the moment.
	Detail string
	// Partial says that the gang's minimum has been placed: what waits is above it.
	Partial bool
	// Shortage is set when placement failed.
	Shortage *place.Shortage
}
