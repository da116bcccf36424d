// Package batch runs batch jobs: it turns Jobs into gangs, placements into pods, and pods into
// status. It also keeps the status of Queues and carries out Commands.
//
//	Job, Pod, LimitRange ──watch──▶ ┌────────────┐ ──Submit──▶ scheduler
//	Commit, Waiting ──────────────▶ │ record     │ ◀─Commit──
//	answers of the writer ────────▶ │ (per job)  │ ──Create, Delete, Bind, Status──▶ apiwriter
//	                                └────────────┘
//
// Every event of a job is posted to the job's record (internal/controlloop). A reconcile applies
// the posted events, decides (lifecycle.Next, a pure function) and acts. The events to which the
// job's policies react are derived from its pods in the same turn. So one worker at a time works on
// a job, many events cost one reconcile, and an event costs the same whatever the size of the job.
//
// A pod's name follows from job, task and index. So a pod that has been written but not yet seen is
// never written twice, and after a restart every pod is found again by name and owner.
package batch
