package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MemberType says what a member of a HyperNode is.
// +kubebuilder:validation:Enum=Node;HyperNode
type MemberType string

// The types of members.
const (
	MemberNode      MemberType = "Node"
	MemberHyperNode MemberType = "HyperNode"
)

// The types of conditions. A condition that is True is absent.
const (
	// HyperNodeValid is False if the stored object cannot be decoded.
	HyperNodeValid = "Valid"
	// HyperNodeMembersResolved is False if members are not counted. The reason and message say which
	// and why. The other members are counted.
	HyperNodeMembersResolved = "MembersResolved"
)

// HyperNode is a domain of the network: nodes, or smaller domains, that reach each other without
// passing through a switch of a higher tier.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=hypernodes,scope=Cluster,shortName=hn
// +kubebuilder:printcolumn:name="TIER",type=integer,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="TIERNAME",type=string,JSONPath=`.spec.tierName`
// +kubebuilder:printcolumn:name="NODECOUNT",type=integer,JSONPath=`.status.nodeCount`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="RESOLVED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="MembersResolved")].message`
type HyperNode struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec HyperNodeSpec `json:"spec"`
	// +optional
	Status HyperNodeStatus `json:"status,omitempty"`
}

// HyperNodeSpec says what belongs to a HyperNode.
type HyperNodeSpec struct {
	// Tier is the level in the tree. Members that are HyperNodes have lower tiers. Pods reach each
	// other faster within a domain of a lower tier.
	// +required
	// +kubebuilder:validation:Minimum=0
	Tier int `json:"tier"`
	// TierName names the tier, for example rack. Jobs can refer to it by highestTierName.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TierName string `json:"tierName,omitempty"`
	// Members are the nodes and HyperNodes that belong to the HyperNode.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10000
	Members []Member `json:"members"`
}

// Member selects nodes or HyperNodes.
type Member struct {
	// Type says whether nodes or HyperNodes are selected.
	// +required
	Type MemberType `json:"type"`
	// +required
	Selector MemberSelector `json:"selector"`
}

// MemberSelector selects nodes or HyperNodes by their names or labels.
//
// +kubebuilder:validation:XValidation:rule="(has(self.exactMatch) ? 1 : 0) + (has(self.regexMatch) ? 1 : 0) + (has(self.labelMatch) ? 1 : 0) == 1",message="must have exactly one of exactMatch, regexMatch and labelMatch"
type MemberSelector struct {
	// ExactMatch selects one by its name.
	// +optional
	ExactMatch *ExactMatch `json:"exactMatch,omitempty"`
	// RegexMatch selects those whose names match a regular expression.
	// +optional
	RegexMatch *RegexMatch `json:"regexMatch,omitempty"`
	// LabelMatch selects those whose labels match.
	// +optional
	LabelMatch *metav1.LabelSelector `json:"labelMatch,omitempty"`
}

// ExactMatch selects an object by its name.
type ExactMatch struct {
	// Name is the name of the node or HyperNode.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// RegexMatch selects objects whose names match.
type RegexMatch struct {
	// Pattern is a regular expression in Go's syntax (RE2). It matches anywhere in the name, unless it
	// is anchored by ^ and $.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="'n'.matches(self) in [true, false]",message="must be a regular expression"
	Pattern string `json:"pattern"`
}

// HyperNodeStatus is the state of a HyperNode.
type HyperNodeStatus struct {
	// Conditions has the type MembersResolved, if members are not counted.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// NodeCount is the number of nodes in the HyperNode and in the HyperNodes below it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeCount int64 `json:"nodeCount,omitempty"`
}

// HyperNodeList is a list of HyperNodes.
//
// +kubebuilder:object:root=true
type HyperNodeList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HyperNode `json:"items"`
}
