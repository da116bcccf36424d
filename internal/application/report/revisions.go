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

// The tracker keeps an Application's revisions. For other clients, each of them is also an
// ApplicationRevision object. It is created just before the first status that names the revision, and
// written again with the status that says how the workflow ended. A deployment that settles at once
// has one such status, so its revision takes one write. One more deletes a revision that is no longer
// kept. The Application owns these objects, so they are deleted with it.

// publishing is the name of the write of an ApplicationRevision among an Application's writes.
const publishing = "revision"

// published is what the ApplicationRevision of the newest revision says, as far as is known.
type published struct {
	name, hash string
	outcome    outcome
	// written is set if this manager has written the object. Otherwise the status says what the object
	// says at least: a manager may have ended between the two writes.
	written bool
}

// outcome says how a workflow ended. It is empty until then.
type outcome struct {
	run        string
	terminated bool
}

func outcomeOf(w *oam.WorkflowStatus) outcome {
	if w == nil || !w.Finished {
		return outcome{}
	}
	return outcome{w.AppRevision, w.Terminated}
}

// publish writes the ApplicationRevision of the newest revision if it lacks something that the status
// now says. before is the status that is stored. publish returns false while the object is being
// created; the answer enqueues the Application. A failure is only logged.
func (c *Reporter) publish(a *deploy.State, r *State, o *oam.Application, before, now *oam.ApplicationStatus) bool {
	last := a.Tracker.Latest()
	if last == nil || now.LatestRevision == nil || now.LatestRevision.Name != last.Name {
		return true
	}
	if a.Writes.InFlight(publishing) {
		return false
	}
	want := published{last.Name, last.Hash, outcomeOf(now.Workflow), true}
	if l := before.LatestRevision; r.published == nil && l != nil {
		// A status is written after the revision that it names.
		r.published = &published{l.Name, l.RevisionHash, outcomeOf(before.Workflow), false}
	}
	same := r.published != nil && r.published.name == want.name && r.published.hash == want.hash
	if same && (want.outcome == outcome{} || want.outcome == r.published.outcome) {
		return true
	}
	revision, err := c.revisionOf(o, last, now.Workflow)
	if err != nil {
		c.Log.Error("a revision of an application cannot be published", "application", a.Key, "error", err)
		return true
	}
	meta := apiwriter.Meta{Owner: a.Name, Reason: "application-revision"}
	failed := func(err error) {
		if err != nil {
			c.Log.Warn("a revision of an application is not published", "application", a.Key, "revision", revision.Name, "error", err)
		}
	}
	if same && r.published.written {
		r.published = &want
		c.replace(meta, revision, []apiwriter.PatchOp{{Op: "add", Path: "/status", Value: revision.Status}}, func(_ apiwriter.Object, err error) { failed(err) })
		return true // the status need not wait: it names a revision that is there
	}
	a.Writes.Start(publishing)
	ended := func(_ apiwriter.Object, err error) {
		failed(err)
		a.Post(func() {
			a.Writes.End(publishing, nil)
			r.published = &want
		})
	}
	meta.ReadFirst, meta.MetadataOnly = same || !last.New, true
	c.Writer.Create(meta, revision, func(there apiwriter.Object, err error) {
		// Another client may have created the revision, or a manager that ended before it stored the
		// tracker may have published another state by this name. Or an earlier Application of this name
		// had such a revision, which is not deleted yet.
		_, created := there.(*metav1.PartialObjectMetadata)
		if err == nil && !created && !sameRevision(there, revision) || apierrors.IsAlreadyExists(err) {
			c.replace(meta, revision, []apiwriter.PatchOp{
				{Op: "add", Path: "/metadata/ownerReferences", Value: revision.OwnerReferences},
				{Op: "add", Path: "/metadata/labels", Value: revision.Labels}, {Op: "add", Path: "/metadata/annotations", Value: revision.Annotations},
				{Op: "add", Path: "/spec", Value: revision.Spec}, {Op: "add", Path: "/status", Value: revision.Status},
			}, func(there apiwriter.Object, err error) {
				if apierrors.IsNotFound(err) {
					c.Writer.Create(meta, revision, ended)
					return
				}
				ended(there, err)
			})
			return
		}
		ended(there, err)
	})
	return false
}

// revisionOf returns the ApplicationRevision of a revision.
func (c *Reporter) revisionOf(o *oam.Application, of *records.Stored, w *oam.WorkflowStatus) (*oam.ApplicationRevision, error) {
	annotations := map[string]string{}
	if of.PublishVersion != "" {
		annotations[oam.PublishVersionAnnotation] = of.PublishVersion
	}
	data, err := json.Marshal(&oam.Application{
		TypeMeta:   metav1.TypeMeta{APIVersion: oam.GroupVersion.String(), Kind: "Application"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: records.WithoutCommands(o.Annotations)},
		Spec:       *of.Spec,
	})
	if err != nil {
		return nil, err
	}
	r := &oam.ApplicationRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: of.Name, Annotations: annotations,
			Labels: map[string]string{oam.AppNameLabel: o.Name, oam.AppRevisionHashLabel: of.Hash},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: oam.GroupVersion.String(), Kind: "Application", Name: o.Name, UID: o.UID, Controller: ptr.To(true),
			}},
		},
		Spec:   oam.ApplicationRevisionSpec{Application: &runtime.RawExtension{Raw: data}, DefinitionHashes: of.Definitions},
		Status: oam.ApplicationRevisionStatus{Succeeded: w != nil && w.Finished && !w.Terminated, Workflow: w.DeepCopy()},
	}
	if c.Definitions != nil {
		r.Spec.Compression = c.Definitions(o.Namespace, of.Spec)
	}
	return r, nil
}

// sameRevision reports whether there, which the server has, is of the same state as r and says that
// its workflow ended in the same way. The times in r are those of this manager.
func sameRevision(there apiwriter.Object, r *oam.ApplicationRevision) bool {
	x, ok := there.(*oam.ApplicationRevision)
	return ok && x.Labels[oam.AppRevisionHashLabel] == r.Labels[oam.AppRevisionHashLabel] &&
		x.Annotations[oam.PublishVersionAnnotation] == r.Annotations[oam.PublishVersionAnnotation] &&
		x.Status.Succeeded == r.Status.Succeeded && outcomeOf(x.Status.Workflow) == outcomeOf(r.Status.Workflow)
}

// replace patches an ApplicationRevision.
func (c *Reporter) replace(meta apiwriter.Meta, r *oam.ApplicationRevision, ops []apiwriter.PatchOp, done func(apiwriter.Object, error)) {
	data, err := json.Marshal(ops)
	if err != nil {
		done(nil, err)
		return
	}
	to := &oam.ApplicationRevision{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}}
	c.Writer.Patch(meta, to, types.JSONPatchType, data, done)
}

// Retract deletes the ApplicationRevisions of revisions that are no longer kept.
func (c *Reporter) Retract(a *deploy.State, old []records.Stored) {
	for _, r := range old {
		o := &oam.ApplicationRevision{ObjectMeta: metav1.ObjectMeta{Namespace: a.Key.Namespace, Name: r.Name}}
		c.Writer.Delete(apiwriter.Meta{Owner: a.Name, Reason: "application-revision"}, o, apiwriter.DeleteOptions{}, func(err error) {
			if err != nil && !apierrors.IsNotFound(err) {
				c.Log.Warn("an old revision of an application stays published", "application", a.Key, "revision", o.Name, "error", err)
			}
		})
	}
}
