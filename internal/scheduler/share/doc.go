// Package share decides which gang is next: it orders queues by their fair share of the cluster,
// and gangs inside each queue, and holds queues to their capability. It is pure bookkeeping: no
// client, clock, goroutine or log.
//
//	Submit(gang) ─▶ ready ──Next──▶ (the scheduler: Admit, place) ──▶ Charge and Remove, or Placed
//	                 ▲                        │ does not fit
//	                 └──────── Wake ◀── parked ◀──────── Park
//
// Shares are weighted max-min fair, one resource at a time. The cluster's amount is divided among
// queues by weight. No queue gets more than its demand or its capability, and the remainder of such
// a queue is divided again among the others. (Progressive filling: Bertsekas and Gallager, Data
// Networks, 2nd edition, section 6.5.2. Volcano's proportion plugin computes the same figure,
// "deserved".) A queue's share is the largest fraction of its deserved amounts that it holds, over
// all resources: its dominant resource (Ghodsi et al., Dominant Resource Fairness, NSDI 2011). The
// queue with the smallest share is next.
//
// No resource is kept idle for the sake of fairness: a queue above its share waits only while a
// queue below its share has a gang that may still be placed. Only capability is a hard limit.
//
// With SetHalfLife the past counts, too: what decides between siblings is then not their share but what
// they have used, a mean of what they have held in which the past counts less and less (as in the
// fair-share factor of Slurm's multifactor priority plugin), together with what they hold now. What a
// queue states that it deserves comes before that.
//
// Queues form a tree (Queue.Parent). Siblings divide what their parent deserves, and a capability
// covers the whole subtree. Gangs belong to leaves. A leaf may be divided among its users: each then has a
// part of it (Queue.Of), which is a queue below it whose gangs are ordered by priority before shares.
package share
