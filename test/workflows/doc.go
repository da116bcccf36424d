// Package workflows holds what workflows must do, as manifests with the nodes that they must have in the end.
//
// Each file in testdata is about one part of the API. It starts with templates that all its cases share; a case is a manifest,
// what users do meanwhile, and the expected table:
//
//	=== NAME: what it shows
//	entrypoint: main               the spec of the workflow, with more documents after ---
//	! wait a Running               then, line by line, what users do
//	! stop
//	---
//	workflow PHASE: MESSAGE
//	NODE TYPE PHASE TEMPLATE (inputs) -> outputs: MESSAGE
//
// The same cases run twice: on the engine alone with pods played by a script (TestEngine, which also restarts the engine after
// every event), and on a real API server with the manager and simulated nodes (TestCluster), all at once in one namespace.
// Pods run as the annotations of their templates say: lockstep.dev/sim-duration, sim-exit-code, sim-message.
//
//	go test ./test/workflows -run TestEngine -rewrite     writes the tables anew: read what changed
package workflows
