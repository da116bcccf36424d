// Package controller runs workflows: it turns what the engine asks for into pods, and what happens to pods into the status.
//
//	Workflow, Pod, WorkflowTaskResult ──watch──▶ ┌──────────┐ ──events──▶ engine.Run.Step
//	Commit, Waiting of the scheduler ──────────▶ │ record   │ ◀─pods to create and delete, nodes that changed, when to wake
//	answers of the writer, timers, locks ──────▶ │ (per wf) │ ──Submit──▶ scheduler
//	                                             └──────────┘ ──Create, Delete, PatchVersion──▶ apiwriter
//
// Everything that happens to a workflow is posted to its record (internal/keyed). A reconcile takes in what was posted, lets
// the engine Step, acts and writes. So one workflow is worked on by one worker at a time, many events cost one reconcile, and
// nothing waits for a fixed delay.
//
// A turn waits for one thing only, aside: the evaluation of a user's expression in a child process. If the workflow is another manager's
// afterwards, what the turn has decided counts for nothing.
//
// # What is written when
//
// The end of a workflow is written at once. Other changes of its status wait to be written together: pods are found again
// by name and owner after a crash, so what they have done is not lost with a status that was not written. What can only be
// known from the status is written first: a pod is deleted when a status that says how its node ended has been written, and
// a pod under a new lock is created when one that says who holds it has.
//
// # Edits by users
//
// Workflows have no status subresource, and clients edit their status: they end pauses, and prepare workflows for a retry.
// Every write here is on condition of the version that was last taken in. When there is a newer one, what a user may have
// changed is taken from it before the next write.
package controller
