// Package cputopology models a machine's processors: sockets, dies, NUMA nodes, L3 domains, cores and their threads.
//
//	sysfs root ──sysfs.Read──▶ Parts ──New──▶ Topology ──Encode──▶ spec of a NodeTopology (1 to 2 kB for 256 CPUs)
//	                                            │                      └──Decode──▶ the same Topology
//	                                            ▼
//	pod annotations ──request.Parse──▶ Request ─▶ allocate.Node / allocate.Choose ──▶ CPUs per container
//	                                            ▲
//	                                        simulate: whole clusters under load, policies side by side
//
// The packages below it:
//
//	cpuset    sets of CPU numbers in the kernel's list format
//	sysfs     reads a Topology from any sysfs root
//	machines  describes machines and writes their sysfs trees, for tests and simulations
//	request   reads what a pod asks for, in three annotation languages, and writes the result annotations
//	allocate  chooses CPUs on a node, and the node among many
//	held      says who holds which CPUs of a node, from API objects
//	agent     reports the machine and applies CPU sets, on each node; not pure, and on a higher floor
//	repack    plans moves within a node that free whole L3 domains or NUMA nodes
//	simulate  measures allocation policies on simulated clusters
//	dump      reads a cluster's machines and pinned pods from a list of objects
//	draw      draws a machine and who sits where, for a terminal and as a page
//
// Everything here is pure: no clock, goroutine, API client or log. What is read comes through an fs.FS.
//
// # Invariants of a Topology
//
// Every online CPU is in exactly one core, one socket and one NUMA node, and in at most one die and one L3 domain. A
// core does not straddle any of them. NUMA ids and socket ids are the kernel's and may be sparse; NUMA nodes without
// CPUs (memory expanders) are kept, with their distances. Offline CPUs are known by number only: the kernel does not
// tell where they sit.
package cputopology
