// Package podgroup schedules pods that Lockstep does not create but whose schedulerName is one of
// Lockstep's: pods of Deployments, of other operators, or single pods. These pods exist before they
// have a node, so they are placed and then bound.
//
//	pods, PodGroups ──watch──▶ keys ──▶ reconcile: count members ──▶ scheduler.Submit(gang)
//	                            ▲            │                            │             │
//	                            │            ▼                      Commit│             │Waiting
//	                            │     PodGroup status,                    ▼             │
//	                            │     PodScheduled=False        apiwriter.Bind each     │
//	                            └───────────────────────────────────(failed)────────────┘
//
// A key is either a PodGroup with all the pods that name it, or one pod that names no PodGroup. A
// PodGroup is one of scheduling.volcano.sh or one of Kubernetes (see kubegroups.go). The sub-groups
// of a PodGroup (spec.subGroupPolicy) are parts of its gang.
//
// Everything is computed from the informers' caches and the binds in flight, so the controller
// continues after a restart where it stopped: members that have nodes count first.
//
// Invariants:
//   - Either no pods of a group or at least its minimum get nodes. A group that fell below its
//     minimum, because a node or a bind failed, is completed before any new group starts.
//   - A PodGroup's status is written at most twice until it is scheduled.
//   - A status is written only if it says something new. Why a group waits is written once it has waited
//     for some seconds.
package podgroup
