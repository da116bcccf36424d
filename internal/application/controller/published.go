package controller

import (
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
)

// The tracker keeps an Application's revisions. Those with a publishVersion, or all if so
// configured, are also ApplicationRevision objects that other clients can read. That is one write
// for a revision, one when its workflow has ended, and one when it is no longer kept. The
// Application owns these objects, so they are deleted with it.

// publishing is the key in app.flight while an ApplicationRevision is created.
const publishing = "revision"

// publish creates an ApplicationRevision of the newest revision, if that is to have one. A failure
// is only logged.
func (c *reporter) publish(a *state, o *oam.Application) {
	last := a.tracker.latest()
	if !c.everyRevision && last.PublishVersion == "" {
		return
	}
	annotations := map[string]string{}
	if last.PublishVersion != "" {
		annotations[oam.PublishVersionAnnotation] = last.PublishVersion
	}
	data, err := json.Marshal(&oam.Application{
		TypeMeta:   metav1.TypeMeta{APIVersion: oam.GroupVersion.String(), Kind: "Application"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: withoutCommands(o.Annotations)},
		Spec:       *last.Spec,
	})
	if err != nil {
		c.log.Error("a state of an application cannot be published", "application", a.key, "error", err)
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
	a.writes.start(publishing)
	c.writer.Create(apiwriter.Meta{Owner: a.name, Reason: "application-revision"}, r, func(_ apiwriter.Object, err error) {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			c.log.Warn("a state of an application is not published", "application", a.key, "revision", name, "error", err)
		}
		a.post(func() { a.writes.end(publishing, nil) })
	})
}

// publishOutcome writes the outcome of a finished workflow into the newest revision's
// ApplicationRevision. It returns false while that object is still being created; the answer
// enqueues the Application.
func (c *reporter) publishOutcome(a *state, before, now *oam.ApplicationStatus) bool {
	last, w := a.tracker.latest(), now.Workflow
	if last == nil || !last.Published || w == nil || !w.Finished || before.Workflow != nil && before.Workflow.Finished && before.Workflow.AppRevision == w.AppRevision {
		return true
	}
	if a.writes.inFlight(publishing) {
		return false
	}
	r := &oam.ApplicationRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.key.Namespace, Name: last.Name},
		Status:     oam.ApplicationRevisionStatus{Succeeded: !w.Terminated, Workflow: w.DeepCopy()},
	}
	c.writer.Status(apiwriter.Meta{Owner: a.name, Reason: "application-revision"}, r, true, func(_ apiwriter.Object, err error) {
		if err != nil {
			c.log.Warn("how a state of an application was deployed is not published", "application", a.key, "revision", r.Name, "error", err)
		}
	})
	return true
}

// retract deletes the ApplicationRevisions of revisions that are no longer kept.
func (c *reporter) retract(a *state, old []revision) {
	for _, r := range old {
		if !r.Published {
			continue
		}
		o := &oam.ApplicationRevision{ObjectMeta: metav1.ObjectMeta{Namespace: a.key.Namespace, Name: r.Name}}
		c.writer.Delete(apiwriter.Meta{Owner: a.name, Reason: "application-revision"}, o, apiwriter.DeleteOptions{}, func(err error) {
			if err != nil && !apierrors.IsNotFound(err) {
				c.log.Warn("an old state of an application stays published", "application", a.key, "revision", o.Name, "error", err)
			}
		})
	}
}
