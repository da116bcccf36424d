// Package workflows measures how fast workflows go through a manager, at what cost, and whether
// correctly.
//
//	Shape ──▶ workflows ──▶ a bare client creates them ──▶ API server ──▶ audit log: who wrote what, when
//	                                                          │    └────▶ a watch of metadata: which workflow ended when
//	     simulated nodes run every pod for PodTime ◀──────────┘
//	                                                                           ▼
//	the same objects, written by a bare client: the floor ────────────▶ Run: rates, latencies, writes, invariants ──▶ Report
//
// There are two loads: queued, all workflows at once; and rate, a rate that grows until the manager
// can no longer keep up.
//
// A workflow's latency beyond its pods is the time between its creation and its end in which none
// of its pods was under way. A pod is under way from the answer to its create until the simulated
// node has written that it succeeded.
package workflows
