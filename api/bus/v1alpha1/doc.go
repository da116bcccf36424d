// Package v1alpha1 holds the API of commands: Command, wire compatible with
// bus.volcano.sh/v1alpha1.
//
// +kubebuilder:object:generate=true
// +groupName=bus.volcano.sh
package v1alpha1
