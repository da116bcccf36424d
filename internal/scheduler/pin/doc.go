// Package pin chooses the CPUs of pods that ask for CPUs, together with their node, as part of
// placement's transaction.
//
//	template ──Compile──▶ Pins, part of the class
//	                        │
//	place.Placer ──Take, GiveBack──▶ Pinner ──▶ allocate: chooses the node and the CPUs
//	                                   ▲  │
//	cluster.View ─────────Refresh──────┘  └─Grant─▶ the pod's result annotations, which the owner
//	  NodeTopologies, CPUs that pods have           writes and the model assumes
//
// The state of the nodes follows from the model alone: from NodeTopologies and from the CPUs that
// pods record in their annotations. A change costs one pass over the pods of the nodes that
// changed. The result is the same after a restart, and when a NodeTopology arrives after pods that
// were placed by it.
//
// Pods that share CPUs go to nodes by what they request (package sharing), all others by the cost of
// their CPUs. Koordinator's pods follow the labels of its nodes: a class has a request for each policy
// that nodes have (policy.go).
//
// Nodes without a NodeTopology take no pods that ask for CPUs.
package pin
