package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// QueueState is the state of a queue. Only an open queue accepts new work.
// +kubebuilder:validation:Enum="";Open;Closed;Closing;Unknown
type QueueState string

// The states of a queue.
const (
	QueueOpen    QueueState = "Open"
	QueueClosed  QueueState = "Closed"
	QueueClosing QueueState = "Closing" // closed, but work that was accepted before has not ended
	QueueUnknown QueueState = "Unknown"
)

// DequeueStrategy says what happens to the jobs behind one that cannot start.
// +kubebuilder:validation:Enum=fifo;traverse
type DequeueStrategy string

// The dequeue strategies.
const (
	DequeueFIFO     DequeueStrategy = "fifo"     // the jobs behind it wait, too
	DequeueTraverse DequeueStrategy = "traverse" // the jobs behind it may start before it
)

// QueueSupported is the type of a condition that is False if the spec has a feature that Lockstep
// does not support. The message names the feature.
const QueueSupported = "Supported"

// QueueConsistent is the type of a condition that is False if the spec contradicts the queues above or
// below: the parent does not exist, or an amount exceeds a limit. The message names the field. The
// spec still applies, as far as possible.
const QueueConsistent = "Consistent"

// Reasons of the condition Consistent.
const (
	ReasonParentNotFound = "ParentNotFound"
	ReasonParentCircle   = "ParentCircle"
	ReasonAmountExceeded = "AmountExceeded"
)

// Queue gives its jobs and PodGroups a share of the cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=queues,scope=Cluster,shortName=q;queue-v1beta1
// +kubebuilder:printcolumn:name="WEIGHT",type=integer,JSONPath=`.spec.weight`
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="PARENT",type=string,JSONPath=`.spec.parent`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.status.allocated.cpu`
// +kubebuilder:printcolumn:name="MEMORY",type=string,JSONPath=`.status.allocated.memory`
// +kubebuilder:printcolumn:name="JOBS",type=string,JSONPath=`.status.allocated['count/jobs\.batch\.volcano\.sh']`
// +kubebuilder:printcolumn:name="MAXJOBS",type=string,JSONPath=`.spec.capability['count/jobs\.batch\.volcano\.sh']`,priority=1
// +kubebuilder:printcolumn:name="USEDCPU",type=string,JSONPath=`.status.usage.average.cpu`,priority=1
// +kubebuilder:printcolumn:name="SHAREDBY",type=string,JSONPath=`.metadata.annotations['lockstep\.dev/fair-share-by']`,priority=1
type Queue struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Spec QueueSpec `json:"spec,omitempty"`
	// +optional
	Status QueueStatus `json:"status,omitempty"`
}

// QueueSpec is the specification of a queue: how much of the cluster it may use, and when other
// queues may claim it back.
type QueueSpec struct {
	// Weight is the queue's share relative to the queues with the same parent.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Weight int32 `json:"weight,omitempty"`
	// Capability is the hard limit of what the queue may use. Resources that are not listed are not
	// limited.
	// +optional
	Capability corev1.ResourceList `json:"capability,omitempty"`
	// Deserved is the amount that the queue may claim back when other queues use it.
	// +optional
	Deserved corev1.ResourceList `json:"deserved,omitempty"`
	// Guarantee is the amount that is kept free for the queue.
	// +optional
	Guarantee Guarantee `json:"guarantee,omitempty"`
	// Reclaimable is true if other queues may claim back what this queue uses above its share.
	// +optional
	// +kubebuilder:default=true
	Reclaimable *bool `json:"reclaimable,omitempty"`
	// Priority orders queues; higher values come first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Priority int32 `json:"priority,omitempty"`
	// Parent is the queue whose share this queue divides with its siblings; empty means root.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	Parent string `json:"parent,omitempty"`
	// DequeueStrategy says what happens to the jobs behind one that cannot start: with fifo they
	// wait, with traverse they may start before it.
	// +optional
	// +kubebuilder:default=traverse
	DequeueStrategy DequeueStrategy `json:"dequeueStrategy,omitempty"`
	// Affinity binds the queue to groups of nodes (label volcano.sh/nodegroup-name).
	// +optional
	Affinity *Affinity `json:"affinity,omitempty"`
	// ExtendClusters lists other clusters that the queue's work may go to.
	// +optional
	ExtendClusters []Cluster `json:"extendClusters,omitempty"`
	// Type is a free text.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type,omitempty"`
}

// Guarantee is the amount of resources that is kept free for a queue.
type Guarantee struct {
	// +optional
	Resource corev1.ResourceList `json:"resource,omitempty"`
}

// Affinity binds a queue to groups of nodes.
type Affinity struct {
	// +optional
	NodeGroupAffinity *NodeGroupAffinity `json:"nodeGroupAffinity,omitempty"`
	// +optional
	NodeGroupAntiAffinity *NodeGroupAntiAffinity `json:"nodeGroupAntiAffinity,omitempty"`
}

// NodeGroupAffinity lists the groups of nodes that a queue must use, or should use if possible.
type NodeGroupAffinity struct {
	// +optional
	RequiredDuringSchedulingIgnoredDuringExecution []string `json:"requiredDuringSchedulingIgnoredDuringExecution,omitempty"`
	// +optional
	PreferredDuringSchedulingIgnoredDuringExecution []string `json:"preferredDuringSchedulingIgnoredDuringExecution,omitempty"`
}

// NodeGroupAntiAffinity lists the groups of nodes that a queue must not use, or should avoid if
// possible.
type NodeGroupAntiAffinity struct {
	// +optional
	RequiredDuringSchedulingIgnoredDuringExecution []string `json:"requiredDuringSchedulingIgnoredDuringExecution,omitempty"`
	// +optional
	PreferredDuringSchedulingIgnoredDuringExecution []string `json:"preferredDuringSchedulingIgnoredDuringExecution,omitempty"`
}

// Cluster is another cluster that a queue's work may go to.
type Cluster struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	Weight int32 `json:"weight,omitempty"`
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
}

// QueueStatus is the state of a queue and the resources that it uses.
type QueueStatus struct {
	// +optional
	State QueueState `json:"state,omitempty"`
	// Unknown, Pending, Running, Inqueue and Completed count the queue's gangs by phase.
	// +optional
	Unknown int32 `json:"unknown,omitempty"`
	// +optional
	Pending int32 `json:"pending,omitempty"`
	// +optional
	Running int32 `json:"running,omitempty"`
	// +optional
	Inqueue int32 `json:"inqueue,omitempty"`
	// +optional
	Completed int32 `json:"completed,omitempty"`
	// Reservation is the nodes and resources that have been set aside for the guarantee.
	// +optional
	Reservation Reservation `json:"reservation,omitempty"`
	// Allocated is the total request of the queue's pods that have nodes.
	// +optional
	Allocated corev1.ResourceList `json:"allocated,omitempty"`
	// Usage is what the queue has used, if the manager orders queues by that (--usage-half-life).
	// +optional
	Usage *QueueUsage `json:"usage,omitempty"`
	// Conditions are further facts about the queue, for example that it cannot be decoded (Valid).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// QueueUsage is what a queue has used: the mean of what its pods have held at each moment, weighted so
// that a moment counts half as much as one that is a half-life later.
type QueueUsage struct {
	// At is the moment until which Average is counted. Since then the queue holds what status.allocated
	// says.
	// +optional
	At metav1.Time `json:"at,omitempty"`
	// Average is what the queue itself has used, without the queues below.
	// +optional
	Average corev1.ResourceList `json:"average,omitempty"`
	// Users is what of it each namespace or user has used, if the queue is shared by these (the
	// annotation lockstep.dev/fair-share-by); at most 100, those that have used most.
	// +optional
	Users map[string]corev1.ResourceList `json:"users,omitempty"`
}

// Reservation is the nodes and resources that have been set aside for a queue.
type Reservation struct {
	// +optional
	Nodes []string `json:"nodes,omitempty"`
	// +optional
	Resource corev1.ResourceList `json:"resource,omitempty"`
}

// QueueList is a list of Queues.
//
// +kubebuilder:object:root=true
type QueueList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Queue `json:"items"`
}
