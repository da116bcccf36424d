package v1beta1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations on pods, on their owners and on queues that say how pods are scheduled.
const (
	// GroupNameAnnotation on a pod names the pod's PodGroup, which is in the pod's namespace.
	GroupNameAnnotation = "scheduling.k8s.io/group-name"
	// VolcanoGroupNameAnnotation is the other spelling of GroupNameAnnotation.
	VolcanoGroupNameAnnotation = "scheduling.volcano.sh/group-name"
	// QueueNameAnnotation on a pod or a namespace names the queue of pods that have no PodGroup of
	// their own.
	QueueNameAnnotation = "scheduling.volcano.sh/queue-name"
	// GroupMinMemberAnnotation on the owner of pods that have no PodGroup is their gang's minimum.
	GroupMinMemberAnnotation = "scheduling.volcano.sh/group-min-member"
	// GroupMinResourcesAnnotation on the owner of pods that have no PodGroup is the JSON of their
	// minResources.
	GroupMinResourcesAnnotation = "scheduling.volcano.sh/group-min-resources"
	// ClosedByParentAnnotation on a queue is "true" if the queue was closed because its parent was.
	ClosedByParentAnnotation = "volcano.sh/closed-by-parent"
	// HierarchyAnnotation and HierarchyWeightsAnnotation on a queue are its path and weights for
	// hierarchical DRF.
	HierarchyAnnotation        = "volcano.sh/hierarchy"
	HierarchyWeightsAnnotation = "volcano.sh/hierarchy-weights"
	// PreemptableAnnotation on a pod or PodGroup is "true" if it may be evicted for others.
	PreemptableAnnotation = "volcano.sh/preemptable"
	// CooldownTimeAnnotation is the duration after a pod's start in which it is not evicted.
	CooldownTimeAnnotation = "volcano.sh/cooldown-time"
	// RevocableZoneAnnotation names the zones in which a pod may run only in their time windows.
	RevocableZoneAnnotation = "volcano.sh/revocable-zone"
	// JDBMinAvailableAnnotation and JDBMaxUnavailableAnnotation are a job's disruption budget, each
	// a count or a percentage.
	JDBMinAvailableAnnotation   = "volcano.sh/jdb-min-available"
	JDBMaxUnavailableAnnotation = "volcano.sh/jdb-max-unavailable"
	// TaskAffinityAnnotation and TaskAntiAffinityAnnotation on a Job are groups of tasks whose pods
	// prefer, or avoid, the nodes of the others': names separated by commas, groups by semicolons. A
	// group of one task is about its pods among themselves. TaskOrderAnnotation lists tasks in the
	// order in which their pods are placed.
	TaskAffinityAnnotation     = "volcano.sh/task-topology-affinity"
	TaskAntiAffinityAnnotation = "volcano.sh/task-topology-anti-affinity"
	TaskOrderAnnotation        = "volcano.sh/task-topology-task-order"
	// NodeGroupLabel on a node is the group that affinity of queues refers to.
	NodeGroupLabel = "volcano.sh/nodegroup-name"
	// ExpectedDurationAnnotation on a pod is how long it runs at most, as far as its author knows.
	ExpectedDurationAnnotation = "lockstep.dev/expected-duration"
	// SLAWaitingTimeAnnotation on a Job or PodGroup is the duration after which capacity is kept for
	// it while it waits.
	SLAWaitingTimeAnnotation = "volcano.sh/sla-waiting-time"
	// NetworkTopologyModeAnnotation and NetworkTopologyHighestTierAnnotation are the
	// networkTopology of pods without a PodGroup.
	NetworkTopologyModeAnnotation        = "volcano.sh/network-topology-mode"
	NetworkTopologyHighestTierAnnotation = "volcano.sh/network-topology-highest-tier"
)

// Names of queues and schedulers.
const (
	// DefaultQueue is the queue of jobs, PodGroups and pods that name none.
	DefaultQueue = "default"
	// RootQueue is the parent of queues that name none. No work is submitted to it.
	RootQueue = "root"
	// SchedulerLockstep and SchedulerVolcano are the default schedulerNames whose pods Lockstep
	// schedules.
	SchedulerLockstep = "lockstep"
	SchedulerVolcano  = "volcano"
)

// WaitingTime returns the duration that an object has in the annotation SLAWaitingTimeAnnotation, or 0
// if it has none. It returns false if the annotation is not a positive duration.
func WaitingTime(o metav1.Object) (d time.Duration, ok bool) {
	return duration(o, SLAWaitingTimeAnnotation)
}

// ExpectedDuration returns the duration that a pod has in the annotation ExpectedDurationAnnotation, or
// 0 if it has none. It returns false if the annotation is not a positive duration.
func ExpectedDuration(o metav1.Object) (d time.Duration, ok bool) {
	return duration(o, ExpectedDurationAnnotation)
}

func duration(o metav1.Object, annotation string) (d time.Duration, ok bool) {
	value := o.GetAnnotations()[annotation]
	if value == "" {
		return 0, true
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return 0, false
	}
	return d, true
}
