package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: "flow.volcano.sh", Version: "v1alpha1"}

// AddToScheme registers this package's types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &JobFlow{}, &JobFlowList{}, &JobTemplate{}, &JobTemplateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Labels and annotations of the Jobs of a JobFlow: NAMESPACE.NAME of the JobTemplate and of the
// JobFlow. A value that is too long for a label is in the annotation only.
const (
	CreatedByJobTemplateKey = "volcano.sh/createdByJobTemplate"
	CreatedByJobFlowKey     = "volcano.sh/createdByJobFlow"
)
