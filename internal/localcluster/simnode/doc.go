// Package simnode simulates nodes, with KWOK as a library, and their kubelets: of the nodes that carry the label
// lockstep.dev/node-type=simulated, and of no others. KWOK keeps the nodes alive (conditions, heartbeats, leases); what
// kubelets do with pods is done here, see kubelets.
//
//	          bound to a simulated node        after lockstep.dev/sim-duration
//	Pending ───────────────────────────▶ Running ───────────────────────────▶ Succeeded | Failed
//	                                      │   ▲                                 (by lockstep.dev/sim-exit-code)
//	                                      └───┘ containers restart where restartPolicy says so
//	any ── deletionTimestamp ──▶ gone
//
// Each arrow is one write. Pods say how they behave by annotations:
//
//	lockstep.dev/sim-duration    Go duration that the containers run; without it the pod runs until deleted
//	lockstep.dev/sim-exit-code   exit code of the containers, default 0
//	lockstep.dev/sim-message     termination message of the containers
package simnode
