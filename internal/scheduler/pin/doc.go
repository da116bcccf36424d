// Package pin chooses the CPUs of pods that ask for them together with their node, as part of placement's transaction.
//
//	template ──Compile──▶ Pins, part of the class
//	                        │
//	place.Placer ──Take, GiveBack──▶ Pinner ──▶ allocate: cost of every node from its summaries, exact choice on one
//	                                   ▲  │
//	cluster.CPUsSince ────Refresh──────┘  └─Grant─▶ the pod's result annotations, for the owner to write with the pod,
//	  NodeTopologies, who holds what                and the same for the model to assume
//
// The state of nodes follows from the model alone: from NodeTopologies and from what pods say they were given. Taking over
// what changed costs a look at the pods of the nodes that changed. After a restart, or when a NodeTopology arrives after
// pods that were placed by it, the same state comes out.
//
// Nodes without a NodeTopology take no pod that asks for CPUs.
package pin
