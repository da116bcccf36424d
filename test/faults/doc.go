// Package faults runs real managers under faults, and checks that no fault changes the result.
//
//	manager process ──▶ faultproxy ──▶ kube-apiserver ◀── simulated nodes, controller manager
//	                       │ faults by seed, SIGKILL at the N-th write
//	                       ▼
//	loads (testdata/*.yaml) ──▶ end state == end state of a run without faults
//
// The manager is a process of its own and reaches the API server through a proxy (package
// faultproxy). The tests therefore also cover how it communicates, above all internal/http2client.
//
// # Loads
//
// batch.yaml, workflows.yaml and applications.yaml are small, one for each system: the manager is
// killed before and after the answer to every single write of each. mixed.yaml and all three at
// once run under random faults. Copies of these in many namespaces, together with applications that
// are changed and deleted all the time, run while the manager is killed at random writes, and the
// API server twice.
//
// # What must hold
//
//   - The end state is the same as in a run without faults: phases, counters, tables of nodes,
//     outputs, objects of applications.
//   - No pod is created more often than without faults: the ledger counts the UIDs under each name.
//   - At every moment, in the order of the API server's own versions: no node is overcommitted, no
//     gang begins without room for all of it, and at most one workflow holds a lock. Under kills, a
//     gang that has begun also keeps room for its missing pods.
//   - At rest nothing is written, and a restart at rest writes nothing. The writes to a load's
//     namespace are counted in the audit log from its rest until the end of the test, over all
//     restarts of later loads.
//
// # How to run it
//
// go test ./test/faults runs a sample. make test-faults runs every crash point, 50 kills under a
// large load and 200 seeds. docs/testing.md says how to run a part, and how to read a violation.
package faults
