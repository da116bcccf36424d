package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodGroupPhase is the phase of a PodGroup's life.
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
	// PodGroupSupported is False if the spec has a feature that Lockstep does not support. The
	// message names the feature.
	PodGroupSupported PodGroupConditionType = "Supported"
)

// ConditionValid is the type of a condition of PodGroups and Queues. It is False if the object
// cannot be decoded; the message names the field.
const ConditionValid = "Valid"

// Reasons of a PodGroup's conditions.
const (
	ReasonPodFailed           = "PodFailed"
	ReasonPodDeleted          = "PodDeleted"
	ReasonNotEnoughResources  = "NotEnoughResources"
	ReasonNotEnoughTasks      = "NotEnoughTasks"
	ReasonNotEnoughPodsOfTask = "NotEnoughPodsOfTask"
)

// NetworkTopologyMode is hard if a network topology constraint must hold, and soft if it is only
// preferred.
// +kubebuilder:validation:Enum=hard;soft
type NetworkTopologyMode string

// The modes of a network topology constraint.
const (
	HardNetworkTopology NetworkTopologyMode = "hard"
	SoftNetworkTopology NetworkTopologyMode = "soft"
)

// NetworkTopologySpec keeps pods near each other in the network. At most one of HighestTierAllowed
// and HighestTierName may be set.
// +kubebuilder:validation:XValidation:rule="!(has(self.highestTierAllowed) && has(self.highestTierName))",message="highestTierAllowed and highestTierName must not both be set",fieldPath=".highestTierName"
type NetworkTopologySpec struct {
	// Mode is hard if the constraint must hold, and soft if it is only preferred.
	// +optional
	// +kubebuilder:default=hard
	Mode NetworkTopologyMode `json:"mode,omitempty"`
	// HighestTierAllowed is the highest tier of the network that may lie between two of the pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HighestTierAllowed *int `json:"highestTierAllowed,omitempty"`
	// HighestTierName is the name of the highest tier of the network that may lie between two of
	// the pods.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	HighestTierName string `json:"highestTierName,omitempty"`
}

// PodGroup is a gang: pods that get nodes together, or not at all. Pods join a PodGroup by the
// annotation scheduling.k8s.io/group-name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=podgroups,shortName=pg;podgroup-v1beta1
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="minMember",type=integer,JSONPath=`.spec.minMember`
// +kubebuilder:printcolumn:name="RUNNINGS",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=`.status.conditions[?(@.type=="Unschedulable")].reason`
// +kubebuilder:printcolumn:name="QUEUE",type=string,priority=1,JSONPath=`.spec.queue`
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Unschedulable")].message`
type PodGroup struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec PodGroupSpec `json:"spec,omitempty"`
	// Status is Pending until the manager writes one.
	// +optional
	// +kubebuilder:default={phase: Pending}
	Status PodGroupStatus `json:"status,omitempty"`
}

// PodGroupSpec is the specification of a gang.
type PodGroupSpec struct {
	// MinMember is the minimum number of pods that must get nodes together; otherwise none gets
	// one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinMember int32 `json:"minMember,omitempty"`
	// MinTaskMember is the minimum of each task, by the task's name in the pods' annotation
	// volcano.sh/task-spec. It has no effect on tasks whose pods are in sub-groups.
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
	// PriorityClassName is the priority class by which the gangs of a queue are ordered.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// MinResources is the total request of the gang's minimum. Placement does not need it, because
	// it adds up the pods' requests.
	// +optional
	MinResources *corev1.ResourceList `json:"minResources,omitempty"`
	// NetworkTopology keeps the gang's pods near each other.
	// +optional
	NetworkTopology *NetworkTopologySpec `json:"networkTopology,omitempty"`
	// SubGroupPolicy divides the gang into sub-groups, whose minimums hold besides minMember.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	SubGroupPolicy []SubGroupPolicySpec `json:"subGroupPolicy,omitempty"`
	// TopologyAffinity keeps the gang, or its sub-groups, apart from others in the network, or near them.
	// Lockstep does not act on it; the condition Supported says so.
	// +optional
	TopologyAffinity *TopologyAffinitySpec `json:"topologyAffinity,omitempty"`
}

// TopologyAffinitySpec says in which domains of the network gangs and sub-groups are, compared with others.
type TopologyAffinitySpec struct {
	// PodGroupAntiAffinity keeps the gang out of the domains of other gangs.
	// +optional
	PodGroupAntiAffinity *PodGroupAntiAffinity `json:"podGroupAntiAffinity,omitempty"`
	// SubGroupAffinity has sub-groups be in one domain.
	// +optional
	SubGroupAffinity *SubGroupAffinity `json:"subGroupAffinity,omitempty"`
	// SubGroupAntiAffinity has sub-groups be in different domains.
	// +optional
	SubGroupAntiAffinity *SubGroupAffinity `json:"subGroupAntiAffinity,omitempty"`
}

// PodGroupAntiAffinity lists the gangs whose domains are avoided.
type PodGroupAntiAffinity struct {
	// Required are domains that are excluded.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.weight))",message="required terms have no weight"
	Required []PodGroupAffinityTerm `json:"required,omitempty"`
	// Preferred are domains that are avoided if possible.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(t, has(t.weight))",message="preferred terms have a weight"
	Preferred []PodGroupAffinityTerm `json:"preferred,omitempty"`
}

// PodGroupAffinityTerm selects gangs, and the tier of the network whose domains are compared.
// +kubebuilder:validation:XValidation:rule="has(self.topologyTier) != (has(self.topologyTierName) && size(self.topologyTierName) > 0)",message="want one of topologyTier and topologyTierName"
type PodGroupAffinityTerm struct {
	// Weight is the weight of a preferred term.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight,omitempty"`
	// PodGroupSelector selects PodGroups by their labels.
	PodGroupSelector *metav1.LabelSelector `json:"podGroupSelector"`
	// NamespaceSelector selects the namespaces in which PodGroups are selected. Without it they are those
	// in the namespace of this PodGroup.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// TopologyTierName is the name of the tier whose domains are compared.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TopologyTierName string `json:"topologyTierName,omitempty"`
	// TopologyTier is the number of that tier.
	// +optional
	TopologyTier *int32 `json:"topologyTier,omitempty"`
}

// SubGroupAffinity lists sub-groups that are in one domain, or in different ones.
type SubGroupAffinity struct {
	// Required must hold.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.weight))",message="required terms have no weight"
	Required []SubGroupAffinityTerm `json:"required,omitempty"`
	// Preferred holds if possible.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(t, has(t.weight))",message="preferred terms have a weight"
	Preferred []SubGroupAffinityTerm `json:"preferred,omitempty"`
}

// SubGroupAffinityTerm names sub-group policies, and the tier of the network whose domains are compared.
// +kubebuilder:validation:XValidation:rule="has(self.topologyTier) != (has(self.topologyTierName) && size(self.topologyTierName) > 0)",message="want one of topologyTier and topologyTierName"
type SubGroupAffinityTerm struct {
	// SubGroups are names of entries of subGroupPolicy.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	SubGroups []string `json:"subGroups"`
	// Weight is the weight of a preferred term.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight,omitempty"`
	// TopologyTierName is the name of the tier whose domains are compared.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TopologyTierName string `json:"topologyTierName,omitempty"`
	// TopologyTier is the number of that tier.
	// +optional
	TopologyTier *int32 `json:"topologyTier,omitempty"`
}

// SubGroupPolicySpec divides some of a PodGroup's pods into sub-groups, which are gangs of their own.
// Pods without a value for one of MatchLabelKeys are in none.
// +kubebuilder:validation:XValidation:rule="!has(self.minSubGroups) || self.minSubGroups <= 1 || (has(self.matchLabelKeys) && size(self.matchLabelKeys) > 0)",message="more than one sub-group needs matchLabelKeys",fieldPath=".minSubGroups"
type SubGroupPolicySpec struct {
	// Name is the name of the policy.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// NetworkTopology keeps each sub-group's pods near each other.
	// +optional
	NetworkTopology *NetworkTopologySpec `json:"networkTopology,omitempty"`
	// SubGroupSize is the number of pods of a sub-group that must get nodes together; otherwise
	// none gets one. Further pods of the sub-group follow as room allows.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	SubGroupSize *int32 `json:"subGroupSize,omitempty"`
	// MinSubGroups is the minimum number of sub-groups that must get nodes together; otherwise no pod
	// of the PodGroup gets any.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	MinSubGroups *int32 `json:"minSubGroups,omitempty"`
	// LabelSelector selects the pods to which the policy applies: all of the PodGroup by default. If
	// several policies select a pod, the first one applies.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// MatchLabelKeys are labels: pods with the same values of these labels form a sub-group. By
	// default all pods that the policy applies to form one.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	MatchLabelKeys []string `json:"matchLabelKeys,omitempty"`
}

// PodGroupStatus is the state of a gang.
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

// Unwritten reports whether no status has been written: the phase is empty, or the CRD's default. A
// status that is written as Pending says why in a condition.
func (s *PodGroupStatus) Unwritten() bool {
	return s.Phase == "" || s.Phase == PodGroupPending && len(s.Conditions) == 0
}

// PodGroupCondition is one aspect of a PodGroup's state.
type PodGroupCondition struct {
	// +optional
	Type PodGroupConditionType `json:"type,omitempty"`
	// +optional
	Status corev1.ConditionStatus `json:"status,omitempty"`
	// TransitionID exists for Volcano's clients; Lockstep leaves it empty.
	// +optional
	TransitionID string `json:"transitionID,omitempty"`
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// Reason is the reason for the status, as a CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a human-readable explanation.
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
