// Package workflows measures how fast a manager runs workflows, what that costs, and whether the
// results are correct.
//
//	Shape ─▶ workflows ─▶ a bare client creates them ─▶ API server ─┬─▶ audit log: all writes
//	                                                         │      └─▶ watch: ends of workflows
//	        simulated nodes run every pod for PodTime ◀──────┘               │
//	                                                                         ▼
//	a bare client writes the same objects: the floor ────▶ Run: rates, latencies, writes, invariants
//	                                                                         ▼
//	                                                                       Report
//
// There are two loads: queued creates all workflows at once; rate creates them at a rate that grows
// until the manager can no longer keep up.
//
// A workflow's latency beyond its pods is the time between its creation and its end in which none
// of its pods was under way. A pod is under way from the answer to its create until the simulated
// node has written that it succeeded.
package workflows
