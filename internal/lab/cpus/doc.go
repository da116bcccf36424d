// Package cpus is the laboratory's scenario cpu-topology: it measures how much the choice of a
// program's CPUs matters to the program. The same load runs on one real node in the modes unpinned,
// pinned, and static-burst, one after the other:
//
//	localcluster: control plane, manager, one real node with its agent
//	       │
//	       ├─▶ image of this program ─▶ pods: a web server and its client; computations of pi
//	       │                                    │ one line of JSON each, as termination message
//	       ▼                                    ▼
//	NodeTopology ─▶ Plan: CPUs of each pod ─▶ Run: rates, latencies, allowed CPUs ─▶ Report
//
// A machine whose CPUs share one L3 cache cannot show a difference: then the report says so, and
// only the checks of the scenario count. In each run the kernel must allow every process exactly
// the CPUs assigned to its pod, or in the mode static-burst at least those.
package cpus
