package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: "argoproj.io", Version: "v1alpha1"}

// Kind returns a kind of this package with its group.
func Kind(kind string) schema.GroupKind { return GroupVersion.WithKind(kind).GroupKind() }

// AddToScheme registers this package's types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&Workflow{}, &WorkflowList{},
		&WorkflowTemplate{}, &WorkflowTemplateList{},
		&ClusterWorkflowTemplate{}, &ClusterWorkflowTemplateList{},
		&CronWorkflow{}, &CronWorkflowList{},
		&WorkflowTaskResult{}, &WorkflowTaskResultList{},
		&WorkflowEventBinding{}, &WorkflowEventBindingList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
