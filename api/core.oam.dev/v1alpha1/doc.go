// Package v1alpha1 holds the policies and workflows that several applications refer to by name.
//
// +kubebuilder:object:generate=true
// +groupName=core.oam.dev
package v1alpha1
