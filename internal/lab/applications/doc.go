// Package applications measures how fast a manager deploys applications, what that costs, and
// whether the results are correct.
//
//	Shape ─▶ applications ─▶ a bare client creates them ─▶ API server ─┬─▶ audit log: all writes
//	                                                         │         └─▶ watch: when each runs
//	    real controller manager: Deployments become ready ◀──┘
//
//	phase     what happens                              figures
//	deploy    all at once, until all run                rate, latency, writes, CPU, memory, floor
//	hold      no client writes                          CPU at rest, memory, writes (none)
//	update    each round changes a field of each        rate, writes, memory after each
//	delete    all at once, until nothing is left        rate, writes
//
// For the floor, a bare client writes the same objects, trackers, revisions and statuses to the same
// control plane, without a manager and without other load.
package applications
