// Package v1alpha1 holds the API of flows of Jobs: JobFlow and JobTemplate, wire compatible with
// flow.volcano.sh/v1alpha1.
//
// The CRDs in config/crd are generated from the types and their markers. What a schema cannot say
// is checked by the controller, which names the field in the status.
//
// +kubebuilder:object:generate=true
// +groupName=flow.volcano.sh
package v1alpha1
