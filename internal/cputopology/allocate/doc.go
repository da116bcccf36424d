// Package allocate chooses CPUs for pods: the node among many, and the CPUs on it, in one decision.
//
//	request.Pod ──NewRequest──▶ Request ─┐
//	                                     ├─▶ Allocator.Choose: cost of every node from its summaries, exact where they tie
//	Topology ──NewLayout──▶ Layout ──▶ Node ─▶ Allocator.Plan: the exact choice of CPUs on one node
//	                                     │         │
//	                                     ◀─Allocate─┘   Node.Result ──▶ the pod's annotation ──▶ FromResult, Node.Restore
//
// # The cost
//
// A choice of CPUs is judged by the fields of Cost, one after the other:
//
//  1. Wishes given up. Conditions are never given up.
//  2. NUMA nodes used, and 3. how far they are apart: remote memory is what costs most.
//  4. Containers already on the CPUs: an idle CPU in another L3 is worth more than half of one here.
//  5. L3 domains used.
//  6. Idle L3 domains broken into: they are what large pods will need.
//  7. Cores shared with other pods: that costs more than a cache miss. Of an odd number of CPUs the odd one may share.
//  8. Fit: L3 domains left partly idle, then sizes of pods like those on the node that the NUMA node could still have taken
//     without breaking into another idle L3 domain, and then no more (see fit.go).
//  9. Idle NUMA nodes broken into, then CPUs left over in the L3 domains used, then idle cores split.
//
// Binding by threads says that company on a core is welcome: shared cores come last. Binding spread counts second
// threads of a core before them.
//
// Where pods are moved within nodes afterwards (Allocator.Repacks), nodes are compared between 5 and 6 by what their pods need
// when packed anew; see packing.go.
//
// Of equal choices the one with the lowest CPU numbers is taken, and of equal nodes the fullest. Equal states decide
// equally.
//
// The choice on a node is exact for this order (oracle_test.go compares it with every possible set). The fields add up
// over cores, L3 domains and NUMA nodes, so nested knapsacks find the minimum; see solver.
//
// # Who may use a CPU
//
// A CPU has either one exclusive holder (Share 1), or any number of shared ones up to the lowest limit among them.
// Isolation holds the rest of a core, L3 domain or NUMA node too. Everyone else runs on the SharedPool: all CPUs
// without an exclusive holder.
//
// A burst container is accounted by its own CPUs, as a shared holder; Effective widens them to their L3 domains as far
// as nobody holds these exclusively, so exclusive pods take CPUs out of the widened sets without asking.
//
// Init containers account for nothing: they run on CPUs that the pod's other containers will have. A pod whose init
// container is larger than the rest holds the difference as long as it lives.
package allocate
