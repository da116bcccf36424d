// Package faults runs real managers between faults, and checks that no fault shows in what they leave behind.
//
//	bin: manager process ──▶ faultproxy ──▶ kube-apiserver ◀── simulated nodes, kube-controller-manager
//	                            │ faults by seed, SIGKILL at the N-th write
//	                            ▼
//	loads (testdata/*.yaml) ──▶ end state == that of a run without faults
//
// The manager is a process of its own and speaks through a proxy (package faultproxy), so that what it is made of, internal/wire
// above all, is below the faults' hands.
//
// # Loads
//
// batch.yaml, workflows.yaml and applications.yaml are small, one for each system: the manager is killed before and after the answer
// to every single write of each. mixed.yaml and all three at once run under random faults. Copies of these in many namespaces, beside
// applications that are changed and deleted all the while, run while the manager is killed at random writes, and the API server twice.
//
// # What must hold
//
//   - The end state is that of a run without faults: phases, counters, tables of nodes, outputs, objects of applications.
//   - No pod is created more often than without faults: each uid under a name is counted.
//   - At every moment, in the order of the API server's own versions: no node is overcommitted, no gang begins without room for
//     all of it, one workflow at most has a lock. Under kills a gang that has begun also keeps room for what it lacks.
//   - At rest nothing is written, and a restart at rest writes nothing: a load's namespace is counted in the audit log from its rest
//     until the end of the test, over all restarts that later loads bring.
//
// # How to run it
//
// go test ./test/faults runs a sample. make test-faults runs every crash point, 50 kills under a large load and 200 seeds.
// docs/testing.md says how to run a part, and how to read a violation.
package faults
