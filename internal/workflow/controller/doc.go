// Package controller runs workflows: it turns the engine's requests into pods, and the observed
// state of pods into the workflow's status.
//
//	Workflow, Pod, TaskResult ───watch──▶ ┌──────────┐ ──events──▶ engine.Run.Step
//	Commit, Waiting of the scheduler ───▶ │ record   │ ◀─pods, changed nodes, time to wake──
//	answers of the writer, timers, locks▶ │ (per wf) │ ──Submit──▶ scheduler
//	                                      └──────────┘ ──Create, Delete, PatchVersion──▶ apiwriter
//
// Every event about a workflow is posted to its record (internal/controlloop). A reconcile delivers
// the posted events, calls the engine's Step, carries out the result and writes the status. So only
// one worker at a time reconciles a workflow, many events cost one reconcile, and there is no fixed
// requeue delay.
//
// While a child process evaluates a user's expression, the turn yields its worker to other
// workflows. If another manager owns the workflow afterwards, the decisions of the turn are
// discarded. No turn waits for the API server.
//
// # What is written when
//
// The end of a workflow is written at once. Other changes of the status are batched: after a crash
// pods are found again by name and owner, so an unwritten status does not lose what they did. Facts
// that only the status records are written first: a pod is deleted only after a status that says
// how its node ended has been written, and a pod under a new lock is created only after a status
// that names the holder of the lock has been written.
//
// # Edits by users
//
// Workflows have no status subresource, and clients edit their status: they end pauses and prepare
// workflows for a retry. Every write of the controller is conditional on the resource version that
// it last took in. If a newer version exists, the controller first takes in the fields that a user
// may have changed.
package controller
