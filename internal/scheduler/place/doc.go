// Package place decides which node each pod of a gang gets. Placement is a pure function of a
// snapshot and gangs: it has no client, clock, goroutine or log.
//
//	cluster model ──Set, Remove──▶ Snapshot ──changes──▶ static   answers by the node's object
//	                                  ▲                    │
//	                                  │                    ▼
//	Gang ──▶ Placer ──────────────────┼─────────────▶ index    per class: pods per node, best first
//	           │  minimum, or roll back; then the rest     │
//	           │                      └──── apply ◀────────┘
//	           ▼
//	        Decision: nodes, or a Shortage in figures
//
// Filters, scores, weights and rounding are those of the kube-scheduler; a test in package upstream
// compares them. Classes that need other filters (inter-pod affinity, topology spread, volumes) go
// through a RareFilter, pod by pod.
//
// Gangs whose templates have the same requirements share an index, which follows the nodes that
// changed. So a gang costs O(changes since × log nodes + pods × log nodes), and O(nodes) when its
// class is seen for the first time.
//
// Invariants:
//   - A node never gets more than it has, in any dimension that a pod asks for.
//   - Either a gang's minimum is placed, or the snapshot is exactly as it was before.
//   - The outcome depends on the state and the names of the nodes. It does not depend on the order
//     in which nodes were added, or on pods that were placed and taken back earlier.
//   - Whether a gang of one class fits is decided exactly. With several classes, placement is
//     greedy in up to four orders, and misses about 1 in 100 of the gangs that barely fit.
package place
