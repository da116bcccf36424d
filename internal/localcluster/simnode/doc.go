// Package simnode simulates nodes, with KWOK as a library, and their kubelets: only those nodes
// that have the label lockstep.dev/node-type=simulated. KWOK keeps the nodes alive (conditions,
// heartbeats, leases); type kubelets does what kubelets do with pods.
//
//	          bound to a simulated node        after lockstep.dev/sim-duration
//	Pending ───────────────────────────▶ Running ───────────────────────────▶ Succeeded | Failed
//	                                      │   ▲                      (by lockstep.dev/sim-exit-code)
//	                                      └───┘ containers restart if restartPolicy says so
//	any ── deletionTimestamp ──▶ deleted
//
// Each arrow is one write. Annotations of a pod determine its behaviour:
//
//	lockstep.dev/sim-duration    Go duration that the containers run; default: until deletion
//	lockstep.dev/sim-exit-code   exit code of the containers, default 0
//	lockstep.dev/sim-message     termination message of the containers
package simnode
