// Package batch runs batch jobs: it turns Jobs into gangs, placements into pods, and pods into status. It also keeps
// Queues' status and carries out Commands.
//
//	Job, Pod, LimitRange ──watch──▶ ┌────────────┐ ──Submit──▶ scheduler
//	Commit, Waiting ──────────────▶ │ record     │ ◀─Commit──
//	answers of the writer ────────▶ │ (per job)  │ ──Create, Delete, Bind, Status──▶ apiwriter
//	                                └────────────┘
//
// Everything that happens to a job is posted to its record (internal/keyed). A reconcile takes in what was posted, decides
// (lifecycle.Next, pure) and acts. What the job's policies react to is read off its pods in the same turn. So one job is worked on by one worker at a time, many events cost one reconcile, and an
// event costs the same whatever the size of the job.
//
// A pod's name follows from job, task and index, so a pod that was written but not yet seen is never written twice, and
// after a restart every pod is found again by name and owner.
package batch
