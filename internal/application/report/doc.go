// Package report writes the status of an Application and publishes its revisions.
//
// Each turn computes the whole status from the deployment's state and progress. The status is
// written if it differs from the last one, and once a change has settled. It is written on
// condition of the version that it was made from. After a conflict nothing is written before the
// watch has shown another version.
package report
