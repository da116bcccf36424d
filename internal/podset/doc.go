// Package podset manages the pods that a controller creates: it requests nodes for gangs, accepts
// placements, creates pods bound to their nodes (or creates them first and binds them later), and
// deletes them.
//
//	owner's turn ──Submit, Create──▶ ┌──────┐ ──Gang──▶ scheduler
//	Commit, Waiting ───────────────▶ │ Set  │ ──Assume is confirmed or forgotten──▶ model of the cluster
//	answers of the writer ─────────▶ │      │ ──Create, Bind, Delete──▶ apiwriter
//	See, Gone ─────────────────────▶ └──────┘ ──Event──▶ owner's turn
//
// A Set belongs to one owner: a job or a workflow. It consists of Groups. A Group is the pods that
// are made from one template; each pod has a Slot, by its index. A slot outlives its pods. Only the
// owner's turn touches a set. Answers of the scheduler and the writer are posted to the owner
// (Config.Post), whose next turn gets them as Events.
//
//	                      ┌──────────── refused, or no longer wanted ──────────┐
//	                      ▼                                                    │
//	bound by creation:    Absent ──Submit──▶ Queued ──Commit──▶ Placing ──written──▶ Created
//	bound afterwards:     Absent ──Create──▶ Creating ──written──▶ Unbound ──Submit──▶ Queued ──▶ as above
//	shown by the watch:   any ──▶ Unbound | Pending | Running | Succeeded | Failed | Unknown | Leaving
//	deleted:              any with a pod ──Delete, or shown as terminating──▶ Leaving ──gone──▶ Absent
//
// # Invariants
//
//   - A slot has at most one pod. A pod's name follows from its slot, so a create is never repeated
//     under another name, and a pod is found by name and owner after a restart.
//   - A pod that was written counts as existing until the watch has passed its version (Unseen).
//   - A reservation that the scheduler assumed is confirmed by the pod's write, or forgotten.
//   - The answer to an earlier write of a slot, or to a write for a group that was removed, changes
//     no slot.
package podset
