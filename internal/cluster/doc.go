// Package cluster holds the in-memory model of the state that the scheduler needs: nodes, the
// reservations of pods on them, queues and priority classes.
//
//	API server ──watch──▶ informer.Set ──Feed──▶ Cluster ◀──Assume, Forget, Confirm── scheduler and owners
//	                                               │  │
//	                                               │  └─Changed/TakeChanges─▶ scheduler: changes that may help a waiting gang
//	                                               └─Snapshot─▶ place.Snapshot: copies only nodes whose generation differs
//
// Cluster combines the state that the watches show with pods that the scheduler has assigned to
// nodes and that the watches have not shown yet (assumptions). All methods are safe for concurrent
// use, and none blocks on the API server.
//
// Invariants, checked by assertConsistent: the use of a node is the sum of the requests of its
// pods; a pod holds at most one node; the use of a queue is the sum of the requests of its pods; a
// pod that has ended holds nothing.
package cluster
