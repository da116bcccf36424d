// Package cputopology models the processors of a machine: sockets, dies, NUMA nodes, L3 domains,
// cores and hardware threads.
//
//	sysfs ──sysfs.Read──▶ Parts ──New──▶ Topology ◀──Encode, Decode──▶ spec of a NodeTopology
//	                                        │
//	                                        ▼
//	annotations ──request.Parse──▶ Pod ─▶ allocate ──▶ CPUs of each container
//	                                        ▲
//	                                     simulate: clusters under load, policies side by side
//
// The spec of a NodeTopology takes 1 to 2 kB for 256 CPUs.
//
// The packages below it:
//
//	cpuset          sets of CPU numbers in the kernel's list format
//	sysfs           reads a Topology from any sysfs root
//	machines        describes machines and writes their sysfs trees, for tests and simulations
//	request         parses a pod's request, and writes the result annotations
//	allocate        chooses CPUs on a node, and the node among many
//	reservation     determines which pod holds which CPUs of a node, from API objects
//	agent           runs on each node: reports the machine and applies CPU sets
//	repack          plans moves within a node that free whole L3 domains or NUMA nodes
//	nodecontroller  moves running pods by these plans, and watches the agents
//	podcontroller   says what is not done for pods that request CPUs
//	simulate        measures allocation policies on simulated clusters
//	dump            reads a cluster's machines and pinned pods from a list of objects
//	draw            draws a machine and the pods on its CPUs, for a terminal and as a page
//
// All of these except agent, nodecontroller and podcontroller are pure: they use no clock, goroutine, API client
// or log. Files are read through an fs.FS.
//
// # Invariants of a Topology
//
// Every online CPU is in exactly one core, one socket and one NUMA node, and in at most one die and
// one L3 domain. A core never spans two of any of these. NUMA ids and socket ids are the kernel's
// and may be sparse. NUMA nodes without CPUs (memory expanders) are kept, with their distances.
// Only the numbers of offline CPUs are known: the kernel does not report their position.
package cputopology
