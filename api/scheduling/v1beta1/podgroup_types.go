package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodGroupPhase is where a PodGroup is in its life.
type PodGroupPhase string

// The phases of a PodGroup.
const (
	PodGroupPending   PodGroupPhase = "Pending"   // its minimum has no nodes
	PodGroupInqueue   PodGroupPhase = "Inqueue"   // its queue has admitted it; its pods may be created
	PodGroupRunning   PodGroupPhase = "Running"   // its minimum has nodes
	PodGroupUnknown   PodGroupPhase = "Unknown"   // some pods run, and the minimum no longer has nodes
	PodGroupCompleted PodGroupPhase = "Completed" // every pod has ended
)

// PodGroupConditionType is the type of a PodGroup's condition.
type PodGroupConditionType string

// The types of a PodGroup's conditions.
const (
	PodGroupUnschedulable PodGroupConditionType = "Unschedulable"
	PodGroupScheduled     PodGroupConditionType = "Scheduled"
	// PodGroupSupported is False when the spec asks for something that Lockstep does not act on; the message names it.
	PodGroupSupported PodGroupConditionType = "Supported"
)

// ConditionValid is a condition of PodGroups and Queues: False when the object cannot be read. The message names the field.
const ConditionValid = "Valid"

// Reasons of a PodGroup's conditions.
const (
	ReasonPodFailed           = "PodFailed"
	ReasonPodDeleted          = "PodDeleted"
	ReasonNotEnoughResources  = "NotEnoughResources"
	ReasonNotEnoughTasks      = "NotEnoughTasks"
	ReasonNotEnoughPodsOfTask = "NotEnoughPodsOfTask"
)

// NetworkTopologyMode says whether a network topology constraint must hold.
// +kubebuilder:validation:Enum=hard;soft
type NetworkTopologyMode string

// The modes of a network topology constraint.
const (
	HardNetworkTopology NetworkTopologyMode = "hard"
	SoftNetworkTopology NetworkTopologyMode = "soft"
)

// NetworkTopologySpec keeps pods near each other in the network. The two ways to name the tier exclude each other.
// +kubebuilder:validation:XValidation:rule="!(has(self.highestTierAllowed) && has(self.highestTierName))",message="highestTierAllowed and highestTierName must not both be set",fieldPath=".highestTierName"
type NetworkTopologySpec struct {
	// Mode says whether the constraint must hold (hard) or is a wish (soft).
	// +optional
	// +kubebuilder:default=hard
	Mode NetworkTopologyMode `json:"mode,omitempty"`
	// HighestTierAllowed is the highest tier of the network that may lie between two of the pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HighestTierAllowed *int `json:"highestTierAllowed,omitempty"`
	// HighestTierName is the same by the tier's name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	HighestTierName string `json:"highestTierName,omitempty"`
}

// PodGroup is a gang: pods that get nodes together, or not at all. Pods join it by GroupNameAnnotation.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=podgroups,shortName=pg;podgroup-v1beta1
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="minMember",type=integer,JSONPath=`.spec.minMember`
// +kubebuilder:printcolumn:name="RUNNINGS",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="QUEUE",type=string,priority=1,JSONPath=`.spec.queue`
type PodGroup struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec PodGroupSpec `json:"spec,omitempty"`
	// +optional
	Status PodGroupStatus `json:"status,omitempty"`
}

// PodGroupSpec says what the gang needs.
type PodGroupSpec struct {
	// MinMember is how many pods must get nodes together, or none does.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinMember int32 `json:"minMember,omitempty"`
	// MinTaskMember is the same for each task: pods with that task-spec annotation.
	// +optional
	// +kubebuilder:validation:MaxProperties=1024
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k] >= 0)",message="must not be negative"
	MinTaskMember map[string]int32 `json:"minTaskMember,omitempty"`
	// Queue is the queue whose share the pods use.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Queue string `json:"queue,omitempty"`
	// PriorityClassName orders the gang among those of its queue.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// MinResources is what the gang's minimum needs in all. It is not needed for placement, which counts the pods.
	// +optional
	MinResources *corev1.ResourceList `json:"minResources,omitempty"`
	// NetworkTopology keeps the gang's pods near each other.
	// +optional
	NetworkTopology *NetworkTopologySpec `json:"networkTopology,omitempty"`
	// SubGroupPolicy divides the gang into smaller gangs.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	SubGroupPolicy []SubGroupPolicySpec `json:"subGroupPolicy,omitempty"`
}

// SubGroupPolicySpec divides some of a PodGroup's pods into gangs of their own.
type SubGroupPolicySpec struct {
	// Name tells the policies apart.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// NetworkTopology keeps each sub-group's pods near each other.
	// +optional
	NetworkTopology *NetworkTopologySpec `json:"networkTopology,omitempty"`
	// SubGroupSize is how many pods of a sub-group get nodes together, or none does.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	SubGroupSize *int32 `json:"subGroupSize,omitempty"`
	// MinSubGroups is how many sub-groups get nodes together, or none does.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	MinSubGroups *int32 `json:"minSubGroups,omitempty"`
	// LabelSelector picks the pods that the policy is about.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// MatchLabelKeys are the labels whose values tell the sub-groups apart.
	// +optional
	MatchLabelKeys []string `json:"matchLabelKeys,omitempty"`
}

// PodGroupStatus is what has become of the gang.
type PodGroupStatus struct {
	// +optional
	Phase PodGroupPhase `json:"phase,omitempty"`
	// +optional
	Conditions []PodGroupCondition `json:"conditions,omitempty"`
	// Running, Succeeded and Failed count the gang's pods.
	// +optional
	Running int32 `json:"running,omitempty"`
	// +optional
	Succeeded int32 `json:"succeeded,omitempty"`
	// +optional
	Failed int32 `json:"failed,omitempty"`
}

// PodGroupCondition is one aspect of a PodGroup's state.
type PodGroupCondition struct {
	// +optional
	Type PodGroupConditionType `json:"type,omitempty"`
	// +optional
	Status corev1.ConditionStatus `json:"status,omitempty"`
	// TransitionID is kept for Volcano's clients; Lockstep leaves it empty.
	// +optional
	TransitionID string `json:"transitionID,omitempty"`
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// Reason is a CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a sentence for people.
	// +optional
	Message string `json:"message,omitempty"`
}

// PodGroupList is a list of PodGroups.
//
// +kubebuilder:object:root=true
type PodGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodGroup `json:"items"`
}
