package report

import (
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/records"
)

// The tracker keeps an Application's revisions. Those with a publishVersion, or all if so
// configured, are also ApplicationRevision objects that other clients can read. That takes one
// write for a revision, one when its workflow has ended, and one when it is no longer kept. The
// Application owns these objects, so they are deleted with it.

// publishing is the name of the creation of an ApplicationRevision among an Application's writes.
const publishing = "revision"

// Publish creates an ApplicationRevision of the newest revision, if it is to have one. A failure is
// only logged.
func (c *Reporter) Publish(a *deploy.State, o *oam.Application) {
	last := a.Tracker.Latest()
	if !c.EveryRevision && last.PublishVersion == "" {
		return
	}
	annotations := map[string]string{}
	if last.PublishVersion != "" {
		annotations[oam.PublishVersionAnnotation] = last.PublishVersion
	}
	data, err := json.Marshal(&oam.Application{
		TypeMeta:   metav1.TypeMeta{APIVersion: oam.GroupVersion.String(), Kind: "Application"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: records.WithoutCommands(o.Annotations)},
		Spec:       *last.Spec,
	})
	if err != nil {
		c.Log.Error("a state of an application cannot be published", "application", a.Key, "error", err)
		return
	}
	last.Published = true
	name := last.Name
	r := &oam.ApplicationRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: name, Annotations: annotations,
			Labels: map[string]string{oam.AppNameLabel: o.Name, oam.AppRevisionHashLabel: last.Hash},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: oam.GroupVersion.String(), Kind: "Application", Name: o.Name, UID: o.UID, Controller: ptr.To(true),
			}},
		},
		Spec: oam.ApplicationRevisionSpec{Application: &runtime.RawExtension{Raw: data}, DefinitionHashes: last.Definitions},
	}
	a.Writes.Start(publishing)
	meta := apiwriter.Meta{Owner: a.Name, Reason: "application-revision"}
	ended := func(_ apiwriter.Object, err error) {
		if err != nil {
			c.Log.Warn("a state of an application is not published", "application", a.Key, "revision", name, "error", err)
		}
		a.Post(func() { a.Writes.End(publishing, nil) })
	}
	c.Writer.Create(meta, r, func(there apiwriter.Object, err error) {
		// A manager that ended before it stored the tracker may have published another state by
		// this name.
		if err == nil && there != nil && !sameRevision(there, r) {
			c.republish(meta, there, r, ended)
			return
		}
		ended(there, err)
	})
}

// sameRevision reports whether two ApplicationRevisions are of the same state.
func sameRevision(a, b apiwriter.Object) bool {
	return a.GetLabels()[oam.AppRevisionHashLabel] == b.GetLabels()[oam.AppRevisionHashLabel] &&
		a.GetAnnotations()[oam.PublishVersionAnnotation] == b.GetAnnotations()[oam.PublishVersionAnnotation]
}

// republish replaces the state that the existing ApplicationRevision there has by that of r.
func (c *Reporter) republish(
	meta apiwriter.Meta, there apiwriter.Object, r *oam.ApplicationRevision, done func(apiwriter.Object, error),
) {
	data, err := json.Marshal([]apiwriter.PatchOp{
		{Op: "add", Path: "/metadata/labels", Value: r.Labels}, {Op: "add", Path: "/metadata/annotations", Value: r.Annotations},
		{Op: "add", Path: "/spec", Value: r.Spec},
	})
	if err != nil {
		done(nil, err)
		return
	}
	c.Writer.Patch(meta, there, types.JSONPatchType, data, done)
}

// publishOutcome writes the outcome of a finished workflow into the newest revision's
// ApplicationRevision. It returns false while that object is still being created; the answer
// enqueues the Application.
func (c *Reporter) publishOutcome(a *deploy.State, before, now *oam.ApplicationStatus) bool {
	last, w := a.Tracker.Latest(), now.Workflow
	if last == nil || !last.Published || w == nil || !w.Finished || before.Workflow != nil && before.Workflow.Finished && before.Workflow.Terminated == w.Terminated && before.Workflow.AppRevision == w.AppRevision {
		return true
	}
	if a.Writes.InFlight(publishing) {
		return false
	}
	r := &oam.ApplicationRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.Key.Namespace, Name: last.Name},
		Status:     oam.ApplicationRevisionStatus{Succeeded: !w.Terminated, Workflow: w.DeepCopy()},
	}
	c.Writer.Status(apiwriter.Meta{Owner: a.Name, Reason: "application-revision"}, r, true, func(_ apiwriter.Object, err error) {
		if err != nil {
			c.Log.Warn("how a state of an application was deployed is not published", "application", a.Key, "revision", r.Name, "error", err)
		}
	})
	return true
}

// Retract deletes the ApplicationRevisions of revisions that are no longer kept.
func (c *Reporter) Retract(a *deploy.State, old []records.Stored) {
	for _, r := range old {
		if !r.Published {
			continue
		}
		o := &oam.ApplicationRevision{ObjectMeta: metav1.ObjectMeta{Namespace: a.Key.Namespace, Name: r.Name}}
		c.Writer.Delete(apiwriter.Meta{Owner: a.Name, Reason: "application-revision"}, o, apiwriter.DeleteOptions{}, func(err error) {
			if err != nil && !apierrors.IsNotFound(err) {
				c.Log.Warn("an old state of an application stays published", "application", a.Key, "revision", o.Name, "error", err)
			}
		})
	}
}
