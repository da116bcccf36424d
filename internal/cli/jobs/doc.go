// Package jobs holds the verbs of batch jobs: submit and get. Both also take objects of every other
// kind; package workflows has the parts that are for workflows only.
//
// The server makes the tables that get prints. Their columns are in the API types, for example
// api/batch/v1alpha1/job_types.go.
package jobs
