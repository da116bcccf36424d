// Package cpus is the laboratory's scenario cpu-topology: does it matter to a program on which CPUs
// it runs? The same load runs on one real node in the modes unpinned, pinned, and static-burst, one
// after the other:
//
//	localcluster: control plane, manager, one real node with its agent
//	       │
//	       ├─▶ image of this program ─▶ pods: a web server and its client; the computation of pi
//	       │                                    │ one line of JSON each, as termination message
//	       ▼                                    ▼
//	NodeTopology ─▶ plan: how many CPUs ──▶ analyse: rates, latencies, where each process may run ─▶ report
//
// A machine whose CPUs share one L3 cache cannot show a difference: then the report says so, and
// only the checks of the scenario count. In each run every process must be allowed exactly the CPUs
// assigned to its pod (static-burst: at least those).
package cpus
