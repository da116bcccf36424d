// Package v1alpha1 holds the batch API: Job and CronJob, wire compatible with
// batch.volcano.sh/v1alpha1.
//
// The CRD in config/crd is generated from the types and their markers. The rules that the API
// server enforces are markers of the fields that they concern. Defaults that the API server cannot
// set are computed and never written back: see defaults.go.
//
// +kubebuilder:object:generate=true
// +groupName=batch.volcano.sh
package v1alpha1
