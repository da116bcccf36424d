package evict

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// SystemCritical is the lowest priority of pods that are never evicted. The priority class
// system-cluster-critical has it, and system-node-critical a higher one.
const SystemCritical = 2_000_000_000

// State is what a Search reads: the nodes, what runs on them, and the rules. A Search does not
// modify it.
type State struct {
	Now time.Time
	// Nodes are the nodes with all pods on them, also pods that are leaving. Pods for which another
	// claimant's capacity is reserved must be on them, too; a node may then have more than it can
	// allocate.
	Nodes *place.Snapshot
	// Place are the options for placing the claimant. Filters that depend on the pods of nodes, Rare
	// and Pin, would not learn who has left, so they must be nil.
	Place place.Options
	// Gangs are the gangs with pods on nodes. Pods of other controllers that belong to no gang are
	// gangs of one pod. Pods that no Gang lists stay where they are.
	Gangs []Gang
	// Queues are the queues that gangs and claims name, and those above them.
	Queues  []Queue
	Budgets []Budget
	Rules   Rules
}

// Rules say which evictions are allowed. With the zero value only guarantees and the task
// priorities of one job evict pods.
type Rules struct {
	// Preempt lets a gang evict gangs of lower priority in its own queue, and pods that belong to
	// no queue.
	Preempt bool
	// PreemptAcross lets a gang evict gangs of lower priority in other queues, as far as these
	// queues have more than they deserve.
	PreemptAcross bool
	// Reclaim lets a queue that has less than it deserves evict gangs of queues that have more.
	Reclaim bool
	// EvictionsMax is how often a gang may be evicted, and how often a claimant may evict others,
	// within Window. Zero means no bound.
	EvictionsMax int
	Window       time.Duration
}

// Gang is a gang with pods on nodes.
type Gang struct {
	Key string
	// Queue is the queue that the gang's pods count against; empty for pods of other schedulers.
	Queue    string
	Priority int32
	// MinMember is the least number of pods, over all tasks, with which the gang can work; pods
	// that have ended are already subtracted. Min is the same by task. Pods above both are surplus.
	MinMember int
	Min       map[string]int
	// Evicted are the times at which the gang was evicted, for Rules.EvictionsMax.
	Evicted []time.Time
	Pods    []Pod
}

// Pod is a pod on a node.
type Pod struct {
	Name types.NamespacedName
	Node string
	// Task groups the pods of a gang whose minimum is counted together; it may be empty.
	Task string
	// Priority is the priority of the pod's task. A gang's pods are evicted only by a claimant whose
	// priority is higher than the gang's and the pod's.
	Priority int32
	Started  time.Time
	// Cooldown is for how long after Started the pod may not be evicted.
	Cooldown time.Duration
	// Protected means that the pod is never evicted, for example because it is annotated with
	// preemptable: false or runs in kube-system.
	Protected bool
	// Preemptable means that the manifest says that the pod may be evicted.
	Preemptable bool
	// Leaving means that the pod is being deleted. Its resources are free for the claimant and cost
	// nothing. Nodes contain the pods for which a caller has reserved these resources.
	Leaving bool
	// Request, NonZero and Ports are what the pod takes of its node, as in place.Class.
	Request, NonZero place.Vector
	Ports            []place.HostPort
	// Budgets are the indices in State.Budgets of the budgets that cover the pod.
	Budgets []int
}

// Budget is a PodDisruptionBudget, or the budget of one gang, which then has the name of a pod of it.
type Budget struct {
	Name types.NamespacedName
	// Allowed is how many more pods may be evicted.
	Allowed int
}

// Queue is a queue with the resources that its pods have.
type Queue struct {
	Name string
	// Parent is the name of the queue above; empty means share.Root.
	Parent string
	// Used is what pods of the queue itself have, without the queues below. Pods that are leaving
	// are included, as in State.Nodes.
	Used place.Vector
	// Guarantee is what others use only on loan. A queue guarantees at least the sum of what the
	// queues below it guarantee.
	Guarantee place.Vector
	// Deserved is the queue's share of the cluster: stated by its spec, or computed from weights.
	// It says nothing about resources without a limit. A queue deserves at least its guarantee.
	Deserved share.Limits
	// Weighed means that Deserved is computed from weights. Reclaim then leaves the queue as much of a
	// resource that the victim has; otherwise the last victim may be a gang of which the queue deserves a
	// part.
	Weighed bool
	// Capability is the hard limit of the queue and the queues below it.
	Capability share.Limits
	// Kept means that other queues may not evict what the queue has above its guarantee
	// (reclaimable: false).
	Kept bool
}

// Claim is a gang that does not fit.
type Claim struct {
	// Gang is what the Placer was asked to place. Evictions make room for its minimum.
	place.Gang
	Priority int32
	// TaskPriority is the lowest task priority of the claimed pods. Pods of the claimant's own gang
	// with lower task priority may be evicted, as long as the gang's minimum is met.
	TaskPriority int32
	// Surplus means that the minimum of the claimant's gang has nodes and these pods are above it.
	// By priority they evict pods above the minimums of other gangs, and pods of their own gang.
	Surplus bool
	// Never means that the claimant evicts nothing (preemptionPolicy: Never).
	Never bool
	// Evicted are the times at which the claimant evicted others, for Rules.EvictionsMax.
	Evicted []time.Time
}
