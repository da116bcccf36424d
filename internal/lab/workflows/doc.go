// Package workflows measures how fast workflows go through a manager, at what cost, and whether correctly.
//
//	Shape ──▶ workflows ──▶ a bare client creates them ──▶ API server ──▶ audit log: who wrote what, when
//	                                                          │    └────▶ a watch of metadata: which workflow ended when
//	     simulated nodes run every pod for PodSeconds ◀───────┘
//	                                                                           ▼
//	the same objects, written by a bare client: the floor ────────────▶ Run: rates, latencies, writes, invariants ──▶ Report
//
// Two loads: queued, all workflows at once; and rate, a pace that grows until the manager no longer keeps up with it.
//
// A workflow's latency beyond its pods is the time from its creation to its end in which none of its pods was under way: a pod
// is under way from the answer to its create until the simulated node has written that it succeeded.
package workflows
