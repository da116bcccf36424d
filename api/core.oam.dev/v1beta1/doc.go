// Package v1beta1 is the API of applications: what users declare (Application), what platform builders offer
// (the definitions), and what Lockstep keeps about both (revisions and resource trackers).
//
// Free-form parts (properties, templates' parameters, status details) are kept as the user wrote them; package
// internal/application/render gives them their meaning.
//
// +kubebuilder:object:generate=true
// +groupName=core.oam.dev
package v1beta1
