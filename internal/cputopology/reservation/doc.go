// Package reservation determines which pod holds which CPUs of a node, from API objects: the
// NodeTopology, and the annotations of the pods on the node. The scheduler and the agent use the
// same function, so that they cannot disagree:
//
//	NodeTopology ──Layout──▶ Layout ─┐              ┌─▶ Node ──────▶ the scheduler assigns idle CPUs
//	                                 ├─Replay─▶ State
//	pods' result annotations ────────┘              └─Effective()──▶ the agent writes CPU sets
//
// No state is kept between calls: the same objects give the same result, whatever happened before.
//
// # When annotations contradict each other
//
// Annotations that one scheduler wrote never contradict each other. If annotations do contradict
// each other, the kubelet's own pins take precedence, then the older pod, because running pods are
// not moved. The losing pod is listed in Problems, holds nothing and runs in the shared pool until
// the CPUs it collides with are free.
//
// # While a pod is moved
//
// A pod that is moved to other CPUs of its node holds both its previous and its new CPUs until the
// agent reports that the move is complete (status.moved of the NodeTopology). So CPUs on which the
// pod may still run are never given to others.
//
// CPUs that have gone offline since are excluded from what a pod holds. A pod with no online CPUs
// left runs in the shared pool.
package reservation
