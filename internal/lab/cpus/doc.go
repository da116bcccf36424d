// Package cpus is the laboratory's scenario cpu-topology: does it matter to a program which CPUs it runs on? The same load
// runs on one real node unpinned, pinned, and static-burst, one after the other:
//
//	localcluster: control plane, manager, one real node with its agent
//	       │
//	       ├─▶ image of this program ─▶ pods: a web server and its client; the computation of pi
//	       │                                    │ one line of JSON each, as termination message
//	       ▼                                    ▼
//	NodeTopology ─▶ plan: how many CPUs ──▶ analyse: rates, latencies, where each process may run ─▶ report
//
// A machine whose CPUs share one L3 cache cannot show a difference: there the report says so, and what is left of the
// scenario is its checks. In each run every process must be allowed exactly the CPUs that its pod was given (static-burst: at
// least those).
package cpus
