package controller

import (
	"slices"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// Artifacts are deleted by package artifactgc once a workflow is over. Here is what that needs of a workflow that runs: that
// it does not vanish with its artifacts.

// guarded says whether a workflow has the finalizer that keeps it until its artifacts are deleted.
func guarded(w *wf.Workflow) bool { return slices.Contains(w.Finalizers, wf.FinalizerArtifactGC) }

// guardArtifacts gives a workflow whose artifacts are to be deleted the finalizer before its first pod exists. It says whether
// that is still to be written.
func (c *Controller) guardArtifacts(r *record) bool {
	if r.looked {
		return false
	}
	r.looked = true
	if guarded(r.object) || r.object.DeletionTimestamp != nil || !pods.CollectsArtifacts(r.spec, r.run.Workflow.Status.StoredTemplates) {
		return false
	}
	r.news(c.Clock.Now())
	r.finalizer, r.first = true, firstUnwritten
	r.next.fields, r.next.urgent = true, true
	return true
}

// finalizers are those that the workflow has, and is to have.
func (r *record) finalizers() []string {
	if !r.finalizer || guarded(r.object) || r.object.DeletionTimestamp != nil { // then none can be added
		return r.object.Finalizers
	}
	return append(slices.Clone(r.object.Finalizers), wf.FinalizerArtifactGC)
}

// endDeleted ends a workflow that is being deleted while it runs, so that it is known what artifacts there are.
func endDeleted(w *wf.Workflow) {
	if w.DeletionTimestamp != nil {
		w.Spec.Shutdown = wf.ShutdownTerminate
	}
}
