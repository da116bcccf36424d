// Package artifactgc deletes the artifacts of finished workflows as their artifactGC requires.
//
//	              the workflow controller
//	(no finalizer) ─────────────────────▶ finalizer, before the first pod
//	                                           │ over, or to be deleted (which ends it first)
//	                                           ▼
//	     pods that delete ◀─ create ─ what is due: OnWorkflowCompletion;
//	           │                       with its deletion OnWorkflowDeletion too
//	           │ their reports
//	           ▼
//	     status: artifacts marked deleted, or the condition ArtifactGCError
//	           │ deletion of the workflow
//	           ▼
//	     the finalizer is removed
//
// The work that is left follows from the workflow on the API server and from the existing pods: the
// name of a pod is a hash of what it deletes, so after a crash no pod is created twice, and to
// delete an artifact twice would do no harm. The cache keeps only parts of finished workflows, so a
// workflow is read when it has something to delete.
//
// A failed pod stays, so that its log can be read. It is created again only after a user has
// deleted it: a store that refuses would refuse again. With spec.artifactGC.forceFinalizerRemoval
// the workflow is deleted nevertheless.
package artifactgc
