// Package v1alpha1 is the part of the applications' API that is declared beside applications: policies and workflows
// that several of them refer to by name.
//
// +kubebuilder:object:generate=true
// +groupName=core.oam.dev
package v1alpha1
