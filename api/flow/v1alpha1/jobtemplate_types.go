package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// JobTemplate is the specification of Jobs that JobFlows create.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=jobtemplates,shortName=jt
type JobTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the specification of the Jobs.
	Spec batchv1alpha1.JobSpec `json:"spec"`
	// +optional
	Status JobTemplateStatus `json:"status,omitempty"`
}

// JobTemplateStatus is the state of a JobTemplate.
type JobTemplateStatus struct {
	// JobDependsOnList names the Jobs that were created from the template and exist, at most the
	// 1,000 that were created last.
	// +optional
	JobDependsOnList []string `json:"jobDependsOnList,omitempty"`
}

// JobTemplateList is a list of JobTemplates.
//
// +kubebuilder:object:root=true
type JobTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []JobTemplate `json:"items"`
}
