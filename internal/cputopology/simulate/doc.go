// Package simulate measures how policies of choosing nodes and CPUs fare on clusters under load.
//
//	empty cluster ──pods arrive──▶ at the load ──pods leave and arrive──▶ figures
//
// Pods of random sizes of a mix arrive until the load is reached. Then, for as many arrivals as asked, random pods leave
// until the next one is within the load, and it arrives. Every policy sees the same machine, sizes and seed; which pods
// leave is drawn among those it placed.
//
// A placement is split if it touches more L3 domains than a pod of its size needs on an empty machine, and avoidably so
// if, at that moment, some node had idle CPUs for it in fewer L3 domains and no more NUMA nodes. Likewise for NUMA nodes. Free
// L3 domains are counted after every arrival under load, against what packing all running pods anew would leave free.
package simulate
