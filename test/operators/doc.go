// Package operators tests that operators work with Lockstep: the programs themselves run against a
// control plane and create PodGroups and pods for manifests of users. hack/operators.sh fetches the
// programs and their CRDs into bin/operators; an operator that is not there is skipped with the
// reason.
package operators
