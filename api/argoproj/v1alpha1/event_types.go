package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WorkflowEventBinding says which workflow is submitted for an event that Argo's server receives. That
// server acts on it; Lockstep's manager does not.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workfloweventbindings,shortName=wfeb
type WorkflowEventBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              WorkflowEventBindingSpec `json:"spec"`
}

// WorkflowEventBindingList is a list of WorkflowEventBindings.
//
// +kubebuilder:object:root=true
type WorkflowEventBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []WorkflowEventBinding `json:"items"`
}

// WorkflowEventBindingSpec selects events, and says what is submitted for each.
type WorkflowEventBindingSpec struct {
	Event Event `json:"event"`
	// +optional
	Submit *Submit `json:"submit,omitempty"`
}

// Event selects events.
type Event struct {
	// Selector is an expression over the event, such as: payload.message == "test".
	Selector string `json:"selector"`
}

// Submit says what is submitted.
type Submit struct {
	WorkflowTemplateRef WorkflowTemplateRef `json:"workflowTemplateRef"`
	// Metadata of the workflow: its name or generateName, labels and annotations.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Metadata metav1.ObjectMeta `json:"metadata,omitempty"`
	// Arguments are values from the event, by valueFrom.event.
	// +optional
	Arguments *Arguments `json:"arguments,omitempty"`
}
