// Package share decides whose turn it is: it orders queues by their fair share of the cluster and the gangs inside each
// queue, and holds queues to their capability. It is pure bookkeeping: no client, clock, goroutine or log.
//
//	Submit(gang) ─▶ ready ──Next──▶ (the scheduler: Admit, place) ──▶ Placed
//	                 ▲                        │ does not fit
//	                 └──────── Wake ◀── parked ◀──────── Park
//
// Shares are weighted max-min fair, one resource at a time: what is there is divided by weight, no queue gets more than
// it asks for or may have, and what one leaves the others divide again. (Progressive filling: Bertsekas and Gallager, Data
// Networks, 2nd edition, section 6.5.2. Volcano's proportion plugin computes the same figure, "deserved".) A queue's share
// is the largest part of its deserved amounts that it holds: its dominant resource (Ghodsi et al., Dominant Resource
// Fairness, NSDI 2011). The queue with the smallest share is next.
//
// Nothing is kept idle for fairness' sake: a queue above its share waits only while a queue below has a gang that may
// still be placed. Only capability is a hard limit.
//
// Queues form a tree (Queue.Parent). Siblings divide what their parent deserves, and a capability holds for everything
// below. Gangs live in leaves.
package share
