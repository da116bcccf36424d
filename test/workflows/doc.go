// Package workflows tests workflows against a specification: manifests with the nodes that each
// workflow must have at its end.
//
// Each file in testdata is about one part of the API. It starts with templates that all its cases
// share. A case is a manifest, the actions of users while the workflow runs, and the expected
// table:
//
//	=== NAME: what it shows
//	entrypoint: main               the spec of the workflow, with more documents after ---
//	! wait a Running               then, line by line, what users do
//	! stop
//	----
//	workflow PHASE: MESSAGE
//	NODE TYPE PHASE TEMPLATE (inputs) -> outputs: MESSAGE
//
// The same cases run twice: TestEngine runs them on the engine alone with simulated pods, and also
// restarts the engine after every event. TestCluster runs them on a real API server with the
// manager and simulated nodes, all at once in one namespace. Pods behave as the annotations of
// their templates say: lockstep.dev/sim-duration, sim-exit-code, sim-message.
//
//	go test ./test/workflows -run TestEngine -rewrite     rewrites the tables: review the changes
package workflows
