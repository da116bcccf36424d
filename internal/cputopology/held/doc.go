// Package held says who holds which CPUs of a node, from what the API holds: the NodeTopology, and the annotations of the
// pods on the node. It is one function for both who need to know, so that they cannot disagree:
//
//	NodeTopology ──Layout──▶ Layout ─┐              ┌─▶ Node ──────▶ the scheduler gives out what is left
//	                                 ├─Replay─▶ State
//	pods' result annotations ────────┘              └─Effective()──▶ the agent writes CPU sets: the containers' own,
//	                                                                 the widened ones of burst containers, the shared pool
//
// Nothing is remembered between calls: the same objects give the same state, whatever happened before.
//
// # When annotations contradict each other
//
// They do not while one scheduler wrote them all. Where they do all the same, the kubelet's own pins come first, then the
// older pod: what runs is not moved. The pod that loses is named in Problems, holds nothing and runs on the shared pool,
// until what it collides with is gone.
//
// # While a pod is moved
//
// A pod that is given other CPUs of its node holds both, those it had and those it gets, until the agent reports that the
// move is complete (status.moved of the NodeTopology). So at no time are CPUs given out on which it may still run.
//
// CPUs that the machine no longer has (off line since) are left out of what a pod holds. A pod of which nothing is left
// runs on the shared pool.
package held
