// Package artifactgc deletes the artifacts of workflows that are over, as their artifactGC says.
//
//	              the workflow controller
//	(no finalizer) ─────────────────────▶ finalizer, before the first pod
//	                                           │ over, or to be deleted (which ends it first)
//	                                           ▼
//	     pods that delete ◀─ create ─ what is due: OnWorkflowCompletion; with its deletion OnWorkflowDeletion too
//	           │ their reports
//	           ▼
//	     status: artifacts marked deleted, or the condition ArtifactGCError ──▶ deletion: the finalizer goes
//
// What is to be done follows from the workflow, as the API server has it, and the pods that exist: their names follow from
// what they delete, so that after a crash nothing is done twice, and deleting twice would do no harm. The cache keeps little
// of workflows that are over, so one is read when there is something to delete.
//
// A pod that fails stays, for its log. It is made again when someone deletes it, and nothing else is tried: a store that
// refuses does so again. spec.artifactGC.forceFinalizerRemoval lets the workflow go all the same.
package artifactgc
