// Package artifactgc deletes the artifacts of finished workflows, as their artifactGC says.
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
// What is to be done follows from the workflow on the API server and from the existing pods: the
// names of pods are hashes of what they delete, so after a crash nothing is done twice, and
// deleting twice would do no harm. The cache keeps only parts of finished workflows, so a workflow
// is read when there is something to delete.
//
// A failed pod stays, so that its log can be read. It is created again when somebody deletes it,
// and nothing else is tried: a store that refuses would refuse again.
// spec.artifactGC.forceFinalizerRemoval lets the workflow be deleted all the same.
package artifactgc
