// Package v1beta1 holds the scheduling API: PodGroup and Queue, wire compatible with
// scheduling.volcano.sh/v1beta1.
//
// It differs from Volcano in that PodGroup has a status subresource, so that writes of the status
// neither change the spec nor conflict with writes of users and operators to the spec.
//
// +kubebuilder:object:generate=true
// +groupName=scheduling.volcano.sh
package v1beta1
