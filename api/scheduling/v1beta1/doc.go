// Package v1beta1 holds the scheduling API: PodGroup and Queue, wire compatible with scheduling.volcano.sh/v1beta1.
//
// One difference from Volcano: PodGroup has a status subresource, so that its status is written without touching, or
// conflicting with, what users and operators write into its spec.
//
// +kubebuilder:object:generate=true
// +groupName=scheduling.volcano.sh
package v1beta1
