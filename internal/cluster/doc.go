// Package cluster is the in-memory model of what the scheduler needs to know: nodes, the pods that hold room on them,
// queues and priority classes.
//
//	API server ──watch──▶ Informers ──Feed──▶ Cluster ◀──Assume, Forget, Confirm── scheduler and owners
//	                         │                  │  │
//	     owners look objects up by index        │  └─Changed/TakeChanges─▶ scheduler: what may help a waiting gang
//	                                            └─Snapshot─▶ place.Snapshot: only nodes whose generation differs are copied
//
// Informers hold what the API server says, trimmed to what is used. Cluster adds what the API server does not know yet:
// pods that have a node by decision but not by a write that was seen (assumptions). All methods of both are safe for use
// by several goroutines, and none blocks on the API server.
//
// Invariants, checked by assertConsistent: a node's use is the sum of its pods' requests; a pod holds at most one node;
// a queue's use is the sum of its pods' requests; a pod that has ended holds nothing.
package cluster
