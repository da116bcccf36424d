package controller

import (
	"slices"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// Package artifactgc deletes the artifacts of finished workflows. The functions of this file are
// for running workflows: they add the finalizer that keeps the object until its artifacts are
// deleted.

// guardArtifacts adds the artifact finalizer to a workflow whose artifacts are to be deleted,
// before its first pod exists. It reports whether the finalizer still has to be written.
func (c *Controller) guardArtifacts(r *record) bool {
	if r.looked {
		return false
	}
	r.looked = true
	if r.object.Guarded() || r.object.DeletionTimestamp != nil || !pods.CollectsArtifacts(r.spec, r.run.Workflow.Status.StoredTemplates) {
		return false
	}
	r.news(c.Clock.Now())
	r.finalizer, r.first = true, firstUnwritten
	r.next.fields, r.next.urgent = true, true
	return true
}

// finalizers returns the finalizers of the workflow, including the artifact finalizer if it is to
// be added.
func (r *record) finalizers() []string {
	// No finalizer can be added to an object that is being deleted.
	if !r.finalizer || r.object.Guarded() || r.object.DeletionTimestamp != nil {
		return r.object.Finalizers
	}
	return append(slices.Clone(r.object.Finalizers), wf.FinalizerArtifactGC)
}

// endDeleted terminates a workflow that is being deleted while it runs, so that the set of its
// artifacts is final.
func endDeleted(w *wf.Workflow) {
	if w.DeletionTimestamp != nil {
		w.Spec.Shutdown = wf.ShutdownTerminate
	}
}
