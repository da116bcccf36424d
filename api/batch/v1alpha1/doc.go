// Package v1alpha1 holds the batch API: Job, wire compatible with batch.volcano.sh/v1alpha1.
//
// The types are what a user writes and reads; the CRD in config/crd is generated from their markers, and the rules that
// the API server enforces stand beside the fields they are about. What the API server cannot default is computed, never
// written back: see defaults.go.
//
// +kubebuilder:object:generate=true
// +groupName=batch.volcano.sh
package v1alpha1
