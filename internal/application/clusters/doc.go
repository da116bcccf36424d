// Package clusters keeps the connections to managed clusters, to which Applications are deployed in
// addition to the manager's own cluster.
//
//	Secrets ──watch──▶ Registry ── a Cluster each ──▶ probe, every few seconds ──▶ breaker
//	(credential.go)        │                                                          │
//	                       └──▶ Events: Joined, Left, Relabelled ◀── Turned ──────────┘
//
// A managed cluster is a Secret in the namespace vela-system with an endpoint and a credential.
// Each cluster has its own connection, so that a slow cluster delays no other, and a circuit
// breaker: while the breaker is open, only probes are sent to the cluster.
package clusters
