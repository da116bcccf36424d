// Package clusters keeps the connections to the clusters that applications are deployed to beside the manager's own.
//
//	Secrets ──watch──▶ Registry ── one Cluster each ──▶ probe, every few seconds ──▶ breaker ──▶ Unreachable()
//	(credential.go)        │                                                          │
//	                       └──▶ Events: Joined, Left, Relabelled ◀── Turned ──────────┘
//
// A managed cluster is a Secret in the namespace vela-system with an endpoint and a credential. Each has a connection of
// its own, so that one that answers slowly, or not at all, delays nothing of the others; and a breaker: while it is open
// nothing is sent there but the probe that will close it.
package clusters
