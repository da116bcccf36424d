// Package simulate measures policies for choosing nodes and CPUs on clusters under load.
//
//	empty cluster ──pods arrive──▶ at the load ──pods leave and arrive──▶ figures
//
// Pods arrive, with random sizes from a mix, until the load is reached. Then, for the requested
// number of arrivals, random pods leave until the next pod is within the load, and that pod
// arrives. Every policy sees the same machine, sizes and seed; the pods that leave are drawn among
// those that the policy placed.
//
// A placement is split if it uses more L3 domains than a pod of its size needs on an empty machine.
// The split is avoidable if at that moment some node had idle CPUs for the pod in fewer L3 domains
// and no more NUMA nodes, however far apart these are. The same applies to NUMA nodes. Free L3 domains
// are counted after every arrival under load, and compared with the number that repacking all running
// pods would leave free.
package simulate
