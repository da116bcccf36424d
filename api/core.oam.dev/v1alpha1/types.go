package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Policy is a policy that deploy steps of several applications refer to by name.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=policies,categories=oam
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.type`
type Policy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Type is a built-in policy or the name of a PolicyDefinition.
	Type string `json:"type"`
	// Properties are the parameters of the policy.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Properties *runtime.RawExtension `json:"properties,omitempty"`
}

// PolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type PolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Policy `json:"items"`
}

// Workflow is a list of steps that several applications refer to by name.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workflows,categories=oam
type Workflow struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Mode *v1beta1.WorkflowExecuteMode `json:"mode,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=128
	Steps []v1beta1.WorkflowStep `json:"steps,omitempty"`
}

// WorkflowList is a list of workflows.
//
// +kubebuilder:object:root=true
type WorkflowList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Workflow `json:"items"`
}
