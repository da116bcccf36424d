// Package evict decides which pods have to leave so that a gang gets nodes. The decision is a pure
// function of the cluster's state and the claim: there is no client, clock, goroutine or log.
//
//	State ──New──▶ Search ──Find(Claim)──▶ Plan: victims and the claimant's nodes, or a Refusal
//	                 ▲                       │
//	                 └──────── Accept ◀──────┘    the next claim sees the outcome
//
// Find works in steps:
//
//	allow    which gangs may be evicted for the claim, by which Rule, and why others may not; and
//	         what that would give at most. Claims with equal rights share the outcome, so a claim
//	         that evictions cannot help costs the time to count nodes, whatever runs on them
//	choose   victims: greedily, node by node and gang by gang; then those not needed are put back
//	improve  exchanges victims for cheaper ones; a small cluster is searched exhaustively
//	place    package place puts the claimant on the nodes without the victims
//
// For a claimant that must be in one domain of the network, these steps are done in one domain after
// another.
//
// Who may evict whom, for queues by what they have at and below the level where the two queues'
// paths to the root meet:
//
//	rule          the claimant's queue                  the victim
//	Guarantee     stays within its guarantee            in a queue that stays at its guarantee or above
//	Reclaim       stays within what it deserves         in a queue above what it deserves
//	Preempt       is the victim's queue                 of lower priority
//	PreemptAcross is another queue                      of lower priority, in a queue above what it deserves
//	Tasks         -                                     pods of the claimant's gang, of lower task priority
//
// A claimant above its gang's minimum (Surplus) evicts by the last three rules only, and only pods that
// are above the minimum of their gang.
//
// Invariants:
//   - With the victims gone, the Placer places the claimant's minimum on the nodes of the Plan.
//   - No victim can be left out.
//   - A gang loses only pods above its minimum, or all of its pods.
//   - No queue ends below its guarantee because of a claimant, whether of another queue or its own.
//   - A victim, as the next claimant, cannot evict its evictor: priorities are strictly ordered, a
//     queue that claims what it deserves is not above it afterwards, and the victims' queue is.
//     With PreemptAcross, circles of three and more are possible; Rules.EvictionsMax ends them.
//   - The outcome depends on the state alone, not on the order in which it is listed.
//
// Pods that leave without a claimant, because their nodes are wanted back, are chosen by Depart;
// those that another node can have by Spare.
//
// The cheapest victims are those with the smallest Cost. Finding them is NP-hard (it contains set
// cover). Plan.Exact says that a search of all possibilities has confirmed them; otherwise they are
// the best that the steps above found.
package evict
