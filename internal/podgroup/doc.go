// Package podgroup schedules the pods of others: of Deployments, of other operators, or plain ones, that name Lockstep as
// their scheduler. They exist before they have a node, so they are placed and then bound.
//
//	pods, PodGroups ──watch──▶ keys ──▶ reconcile: count members ──▶ scheduler.Submit(gang)
//	                            ▲            │                            │             │
//	                            │            ▼                      Commit│             │Waiting
//	                            │     PodGroup status,                    ▼             │
//	                            │     PodScheduled=False        apiwriter.Bind each     │
//	                            └───────────────────────────────────(failed)────────────┘
//
// A key is a PodGroup with all the pods that name it, or one pod that names none. Everything is computed from what the
// informers show plus the binds under way, so a restart continues where it was: members that have nodes count first.
//
// Invariants: of a group either none or at least its minimum get nodes (a group that fell below, because a node or a bind
// failed, is completed before anything new starts); a PodGroup's status is written at most twice until it is scheduled;
// a status is only written when it says something new.
package podgroup
