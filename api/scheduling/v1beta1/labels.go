package v1beta1

// Annotations on pods (and on what owns them) that say how they are scheduled together.
const (
	// GroupNameAnnotation on a pod names the PodGroup (of its namespace) that it belongs to.
	GroupNameAnnotation = "scheduling.k8s.io/group-name"
	// VolcanoGroupNameAnnotation is the other spelling of GroupNameAnnotation.
	VolcanoGroupNameAnnotation = "scheduling.volcano.sh/group-name"
	// QueueNameAnnotation on a pod or a namespace names the queue of pods that have no PodGroup of their own.
	QueueNameAnnotation = "scheduling.volcano.sh/queue-name"
	// GroupMinMemberAnnotation on the owner of pods that have no PodGroup is their gang size.
	GroupMinMemberAnnotation = "scheduling.volcano.sh/group-min-member"
	// GroupMinResourcesAnnotation on the owner of pods that have no PodGroup is the JSON of their minResources.
	GroupMinResourcesAnnotation = "scheduling.volcano.sh/group-min-resources"
	// ClosedByParentAnnotation on a queue is "true" when it was closed because its parent was.
	ClosedByParentAnnotation = "volcano.sh/closed-by-parent"
	// HierarchyAnnotation and HierarchyWeightsAnnotation on a queue are its path and weights for hierarchical DRF.
	HierarchyAnnotation        = "volcano.sh/hierarchy"
	HierarchyWeightsAnnotation = "volcano.sh/hierarchy-weights"
	// PreemptableAnnotation on a pod or PodGroup is "true" when it may be evicted for others.
	PreemptableAnnotation = "volcano.sh/preemptable"
	// CooldownTimeAnnotation is the duration for which a young pod is not evicted.
	CooldownTimeAnnotation = "volcano.sh/cooldown-time"
	// RevocableZoneAnnotation names the zones in which a pod may run only in their time windows.
	RevocableZoneAnnotation = "volcano.sh/revocable-zone"
	// JDBMinAvailableAnnotation and JDBMaxUnavailableAnnotation are a job's disruption budget: a count or a percentage.
	JDBMinAvailableAnnotation   = "volcano.sh/jdb-min-available"
	JDBMaxUnavailableAnnotation = "volcano.sh/jdb-max-unavailable"
	// SLAWaitingTimeAnnotation is the duration after which a waiting job goes first.
	SLAWaitingTimeAnnotation = "volcano.sh/sla-waiting-time"
	// NetworkTopologyModeAnnotation and NetworkTopologyHighestTierAnnotation are networkTopology for pods without a PodGroup.
	NetworkTopologyModeAnnotation        = "volcano.sh/network-topology-mode"
	NetworkTopologyHighestTierAnnotation = "volcano.sh/network-topology-highest-tier"
)

// Names with a meaning.
const (
	// DefaultQueue is the queue of whatever names none.
	DefaultQueue = "default"
	// RootQueue is the parent of queues that name none. Nothing is submitted to it.
	RootQueue = "root"
	// SchedulerLockstep and SchedulerVolcano are the schedulerNames that Lockstep answers to.
	SchedulerLockstep = "lockstep"
	SchedulerVolcano  = "volcano"
)
