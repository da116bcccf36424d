package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// QueueState says whether a queue takes new work.
// +kubebuilder:validation:Enum="";Open;Closed;Closing;Unknown
type QueueState string

// The states of a queue.
const (
	QueueOpen    QueueState = "Open"
	QueueClosed  QueueState = "Closed"
	QueueClosing QueueState = "Closing" // closed, and work that was accepted before has not ended
	QueueUnknown QueueState = "Unknown"
)

// DequeueStrategy says what a job at the head of a queue that cannot start does to those behind it.
// +kubebuilder:validation:Enum=fifo;traverse
type DequeueStrategy string

// The dequeue strategies.
const (
	DequeueFIFO     DequeueStrategy = "fifo"     // those behind wait
	DequeueTraverse DequeueStrategy = "traverse" // those behind are tried
)

// QueueSupported is the type of the condition that is False when the spec asks for something that Lockstep does not act
// on; the message names it.
const QueueSupported = "Supported"

// Queue is a share of the cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=queues,scope=Cluster,shortName=q;queue-v1beta1
// +kubebuilder:printcolumn:name="WEIGHT",type=integer,JSONPath=`.spec.weight`
// +kubebuilder:printcolumn:name="STATE",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="PARENT",type=string,JSONPath=`.spec.parent`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
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

// QueueSpec says how much of the cluster a queue may use, and when it must give it back.
type QueueSpec struct {
	// Weight is the queue's share relative to its siblings'.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Weight int32 `json:"weight,omitempty"`
	// Capability is the most that the queue may use; a resource that is not listed is not limited.
	// +optional
	Capability corev1.ResourceList `json:"capability,omitempty"`
	// Deserved is what the queue may claim back when others have borrowed it.
	// +optional
	Deserved corev1.ResourceList `json:"deserved,omitempty"`
	// Guarantee is kept free for the queue.
	// +optional
	Guarantee Guarantee `json:"guarantee,omitempty"`
	// Reclaimable says whether other queues may claim back what this one uses above its share.
	// +optional
	// +kubebuilder:default=true
	Reclaimable *bool `json:"reclaimable,omitempty"`
	// Priority orders queues, higher first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Priority int32 `json:"priority,omitempty"`
	// Parent is the queue of which this one is a part; empty means root.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	Parent string `json:"parent,omitempty"`
	// DequeueStrategy says what a job at the head of the queue that cannot start does to those behind it.
	// +optional
	// +kubebuilder:default=traverse
	DequeueStrategy DequeueStrategy `json:"dequeueStrategy,omitempty"`
	// Affinity binds the queue to groups of nodes (label volcano.sh/nodegroup-name).
	// +optional
	Affinity *Affinity `json:"affinity,omitempty"`
	// ExtendClusters lists other clusters that the queue's work may go to.
	// +optional
	ExtendClusters []Cluster `json:"extendClusters,omitempty"`
	// Type is free text.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type,omitempty"`
}

// Guarantee is what is kept free for a queue.
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

// NodeGroupAffinity lists the groups of nodes that a queue must or would like to use.
type NodeGroupAffinity struct {
	// +optional
	RequiredDuringSchedulingIgnoredDuringExecution []string `json:"requiredDuringSchedulingIgnoredDuringExecution,omitempty"`
	// +optional
	PreferredDuringSchedulingIgnoredDuringExecution []string `json:"preferredDuringSchedulingIgnoredDuringExecution,omitempty"`
}

// NodeGroupAntiAffinity lists the groups of nodes that a queue must not or would rather not use.
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

// QueueStatus is what a queue holds.
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
	// Reservation is what has been set aside for the guarantee.
	// +optional
	Reservation Reservation `json:"reservation,omitempty"`
	// Allocated is what the queue's pods request.
	// +optional
	Allocated corev1.ResourceList `json:"allocated,omitempty"`
	// Conditions say what else is to be known, for example what of the spec is not acted on.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reservation is what has been set aside for a queue.
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
