package controller

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// objects is the state of the objects that a workflow has besides its pods: volume claims and a
// disruption budget.
type objects struct {
	left int // number of creates without an answer
	made bool
}

// ensureObjects creates the workflow's volume claims and disruption budget. It reports whether they
// all exist.
func (c *Controller) ensureObjects(r *record) bool {
	if r.objects != nil {
		return r.objects.made
	}
	w := r.run.Workflow
	claims := pods.Claims(w, r.spec)
	list := make([]apiwriter.Object, 0, len(claims)+1)
	for _, claim := range claims {
		list = append(list, claim)
	}
	if r.spec.PodDisruptionBudget != nil {
		list = append(list, disruptionBudget(w, r.spec))
	}
	r.objects = &objects{left: len(list), made: len(list) == 0}
	key, uid := r.key, r.uid
	// If the status was written, an earlier manager may have created the objects.
	m := apiwriter.Meta{Owner: ownerKey(key), Reason: "workflow-object", ReadFirst: r.resumed}
	for _, o := range list {
		c.Writer.Create(m, o, func(_ apiwriter.Object, err error) {
			c.loop.Post(key, uid, func(r *record) { c.madeObject(r, o, err) })
		})
	}
	return r.objects.made
}

func (c *Controller) madeObject(r *record, o apiwriter.Object, err error) {
	if r.run == nil || r.objects == nil || r.run.Workflow.Status.Phase.Completed() || errors.Is(err, apiwriter.ErrStopped) {
		return
	}
	s := &r.run.Workflow.Status
	if err != nil {
		now := c.Clock.Now()
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) { // the same object is never accepted
			r.waiting = nil
			out := r.run.Abort(now, plain(err))
			c.act(r, &out, now)
			r.next.urgent = true
			c.loop.Wake(r.key)
			return
		}
		r.objects = nil
		c.loop.WakeAfter(r.key, r.refusal.Note(now, "", plain(err)))
		r.news(now)
		r.next.fields, s.Message = true, r.refusal.Message
		return
	}
	if r.objects.left--; r.objects.left > 0 {
		return
	}
	r.objects.made, s.Message = true, ""
	s.PersistentVolumeClaims = nil
	for i := range r.spec.VolumeClaimTemplates {
		name := r.spec.VolumeClaimTemplates[i].Name
		s.PersistentVolumeClaims = append(s.PersistentVolumeClaims, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pods.ClaimName(r.key.Name, name)},
		}})
	}
	r.news(c.Clock.Now())
	r.next.fields = true
}

func disruptionBudget(w *wf.Workflow, spec *wf.WorkflowSpec) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: w.Name, Labels: map[string]string{wf.LabelWorkflow: w.Name},
			OwnerReferences: []metav1.OwnerReference{*pods.OwnerReference(w)},
		},
		Spec: *spec.PodDisruptionBudget.DeepCopy(),
	}
	if b.Spec.Selector == nil {
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{wf.LabelWorkflow: w.Name}}
	}
	return b
}

// deleteObjects deletes the workflow's disruption budget, and its volume claims if volumeClaimGC
// says so. It returns the volumes that are kept; they are deleted with the workflow.
func (c *Controller) deleteObjects(r *record, spec *wf.WorkflowSpec, status *wf.WorkflowStatus) (kept []corev1.Volume) {
	if spec.PodDisruptionBudget != nil {
		c.deleteOwn(r, func(ctx context.Context) (apiwriter.Object, error) {
			return c.Client.PolicyV1().PodDisruptionBudgets(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
		})
	}
	keep := status.Phase != wf.WorkflowSucceeded && (spec.VolumeClaimGC == nil || spec.VolumeClaimGC.Strategy != wf.VolumeClaimGCOnCompletion)
	if keep {
		return status.PersistentVolumeClaims
	}
	for _, v := range status.PersistentVolumeClaims {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		c.deleteOwn(r, func(ctx context.Context) (apiwriter.Object, error) {
			return c.Client.CoreV1().PersistentVolumeClaims(r.key.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		})
	}
	return nil
}

// deleteOwn deletes an object if the workflow is its controller. The name alone proves nothing: a
// user who can write the workflow can write its status, and another object can have the name. The
// object is read first; that is rare, and a goroutine does it, so that it blocks no other work.
func (c *Controller) deleteOwn(r *record, read func(context.Context) (apiwriter.Object, error)) {
	key, uid := r.key, r.uid
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		o, err := read(ctx)
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil {
			c.Log.Warn("reading an object of a workflow that has ended failed; it goes with the workflow", "workflow", key, "error", err)
			return
		}
		if owner := metav1.GetControllerOfNoCopy(o); owner != nil && owner.UID == uid {
			c.Writer.Delete(apiwriter.Meta{Owner: ownerKey(key), Reason: "delete-workflow-object"}, o, apiwriter.DeleteOptions{}, nil)
		}
	}()
}
