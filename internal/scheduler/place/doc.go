// Package place decides which node each pod of a gang gets: a pure function of a snapshot and gangs. It has no client,
// clock, goroutine or log.
//
//	cluster model ──Set, Remove──▶ Snapshot ──changes──▶ static   filters and scores by the node's object, per kind of template
//	                                  ▲                    │
//	                                  │                    ▼
//	Gang ──▶ Placer ──────────────────┼─────────────▶ index    per class: how many pods each node takes, best node first
//	           │  minimum, or roll back; then the rest     │
//	           │                      └──── apply ◀────────┘
//	           ▼
//	        Decision: nodes, or a Shortage in figures
//
// Filters, scores, weights and rounding are the kube-scheduler's; a test in the upstream package compares them. Classes
// that need more (inter-pod affinity, topology spread, volumes) go through a RareFilter, pod by pod.
//
// Gangs whose templates ask for the same share an index, which follows the nodes that changed. So a gang costs
// O(changes since × log nodes + pods × log nodes), and O(nodes) the first time its class is seen.
//
// Invariants: a node never gets more than it has, in any dimension that a pod asks for; a gang's minimum is placed or the
// snapshot is as before, to the last bit; the outcome depends on the nodes' state and names, and not on the order in
// which they were added or on what was placed and taken back before. Whether a gang of one class fits is decided exactly;
// with several classes placement is greedy in up to four orders, and misses about 1 in 100 of the gangs that fit barely.
package place
