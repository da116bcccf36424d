package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: "core.oam.dev", Version: "v1beta1"}

// AddToScheme registers this package's types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&Application{}, &ApplicationList{},
		&ComponentDefinition{}, &ComponentDefinitionList{},
		&WorkloadDefinition{}, &WorkloadDefinitionList{},
		&TraitDefinition{}, &TraitDefinitionList{},
		&PolicyDefinition{}, &PolicyDefinitionList{},
		&WorkflowStepDefinition{}, &WorkflowStepDefinitionList{},
		&DefinitionRevision{}, &DefinitionRevisionList{},
		&ApplicationRevision{}, &ApplicationRevisionList{},
		&ResourceTracker{}, &ResourceTrackerList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
