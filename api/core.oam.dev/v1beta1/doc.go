// Package v1beta1 holds the API of applications: Application, which users write, the definitions,
// which platform engineers write, and the revisions and resource trackers, which Lockstep writes.
//
// Free-form parts (properties, parameters of templates, status details) are kept as the user wrote
// them. Package internal/application/render interprets them.
//
// +kubebuilder:object:generate=true
// +groupName=core.oam.dev
package v1beta1
