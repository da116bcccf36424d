// Package allocate chooses CPUs for pods: the node among many, and the CPUs on it, in one decision.
//
//	request.Pod ──NewRequest──▶ Request ─┐
//	                                     ├─▶ Allocator.Choose: cost of every node from its summaries
//	Topology ──NewLayout──▶ Layout ──▶ Node ─▶ Allocator.Plan: the exact choice of CPUs on one node
//	                                     │         │
//	                                     ◀─Allocate─┘
//
//	Node.Result ──▶ the pod's annotation ──▶ FromResult, Node.Restore
//
// # The cost
//
// A choice of CPUs is judged by the fields of Cost, in this order:
//
//  1. Wishes given up. Conditions are never given up.
//  2. NUMA nodes used: remote memory is the largest cost.
//  3. The distances between these NUMA nodes.
//  4. Containers already on the CPUs: an idle CPU in another L3 domain is worth more than half a
//     CPU in this one.
//  5. L3 domains used.
//  6. Cores shared with other pods: sharing a core costs the pod for its whole life. The odd CPU of
//     an odd number may share its core.
//  7. Idle L3 domains broken into: large pods will need them.
//  8. Fit: L3 domains left partly idle; then sizes, of pods like those on the node, of which the
//     NUMA node can no longer take one more without breaking into another idle L3 domain (see
//     fit.go).
//  9. Idle NUMA nodes broken into, then CPUs left over in the L3 domains used, then idle cores
//     split.
//
// With binding by threads, sharing a core is welcome: shared cores come last in the order. With
// binding spread, second threads of a core and then shared cores follow 7.
//
// If pods are moved within nodes afterwards (Allocator.Repacks), then between 6 and 7 nodes are
// compared by what their pods need when repacked, or, if too few CPUs are idle there for moves, by
// the idle L3 domains that are broken into; see packing.go.
//
// Among equal choices the one with the lowest CPU numbers wins, and among equal nodes the fullest.
// Equal states give equal decisions.
//
// The choice on a node is exact for this order (oracle_test.go compares it with every possible
// set). The fields add up over cores, L3 domains and NUMA nodes, so nested knapsacks find the
// minimum; see solver. On machines with too many sets of NUMA nodes it is exact if their distances
// are those of a tree, and otherwise finds whatever fits, but not always the nearest NUMA nodes; see
// numaSearch.
//
// # Who may use a CPU
//
// A CPU has either one exclusive holder (Share 1), or any number of shared holders up to the lowest
// limit among them. Isolation also holds the rest of a core, L3 domain or NUMA node. All other
// containers run in the SharedPool: the CPUs without an exclusive holder.
//
// A burst container is accounted with its own CPUs, as a shared holder. Effective widens its set to
// the L3 domains of these CPUs, except for CPUs held exclusively. So exclusive pods take CPUs out
// of the widened sets without coordination.
//
// Init containers are not accounted: they run on CPUs of the pod's other containers. A pod whose
// init container needs more CPUs than the rest holds the difference for its whole life.
package allocate
