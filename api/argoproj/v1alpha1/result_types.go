package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WorkflowTaskResult carries a node's outputs from its pod to the controller, if they are too large
// for the pod's termination message. Its name is the node's ID.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workflowtaskresults,shortName=wtr
type WorkflowTaskResult struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Phase             NodePhase `json:"phase,omitempty"`
	Message           string    `json:"message,omitempty"`
	Outputs           *Outputs  `json:"outputs,omitempty"`
	Progress          string    `json:"progress,omitempty"`
}

// WorkflowTaskResultList is a list of WorkflowTaskResults.
//
// +kubebuilder:object:root=true
type WorkflowTaskResultList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []WorkflowTaskResult `json:"items"`
}
