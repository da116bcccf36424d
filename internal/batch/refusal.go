package batch

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons for which a job's pods or objects are refused, as reported in its status.
const (
	reasonQuota     = "QuotaExceeded"
	reasonNameTaken = "NameTaken"
	reasonRefused   = "PodsRefused"
	reasonPlugin    = "PluginFailed"
)

// refused handles a pod that the API server refuses. The job's other placements are given back:
// most likely they would be refused too, and other jobs can use the room.
func (c *Controller) refused(r *record, w write, err error) {
	t := r.tasks[w.task]
	if t.units[w.index].uid != "" {
		// A binding failed: the pod is gone or was bound by another client, which the watch will
		// show.
		t.set(w.index, unbound)
		if p, ok := c.Informers.Pods.Get(r.key.Namespace, t.pods.PodName(int(w.index))); ok {
			c.takePod(r, p)
		}
		return
	}
	t.set(w.index, absent)
	if !t.afterwards && mayForbidNode(err) {
		c.Log.Info("a policy refuses pods that name their node: this task's pods are created first and bound later",
			"job", r.key, "task", t.pods.Name, "error", err)
		t.afterwards = true
		for i, w := range r.toWrite {
			if r.tasks[w.task] == t {
				c.forget(r.key, t.pods.PodName(int(w.index)))
				c.unplace(t, w.index)
				r.toWrite[i].node = dropped
			}
		}
		r.toWrite = withoutDropped(r.toWrite)
		return
	}
	c.refuse(r, reasonFor(err), err)
}

const dropped = "\x00"

func withoutDropped(in []write) []write {
	out := in[:0]
	for _, w := range in {
		if w.node != dropped {
			out = append(out, w)
		}
	}
	return out
}

// refuse puts the job's writes into backoff. The answers to one burst of writes count once.
func (c *Controller) refuse(r *record, reason string, err error) {
	now := c.Clock.Now()
	if r.refusal == nil || !r.refusal.retryAt.After(now) {
		r.failures++
		r.refusal = &refusal{retryAt: now.Add(min(retryMax, retryMin<<min(r.failures-1, 9)))}
		c.loop.WakeAfter(r.key, r.refusal.retryAt.Sub(now))
	}
	r.refusal.reason, r.refusal.message = reason, plain(err)
	c.withdraw(r)
}

func reasonFor(err error) string {
	switch {
	case apierrors.IsAlreadyExists(err):
		return reasonNameTaken
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return reasonQuota
	}
	return reasonRefused
}

// mayForbidNode reports whether the refusal may come from a policy or webhook that forbids pods to
// name their node.
func mayForbidNode(err error) bool {
	s := err.Error()
	return strings.Contains(s, "nodeName") || strings.Contains(s, "denied request") || strings.Contains(s, "denied the request")
}

// plain returns the server's message without the parts that differ from pod to pod, so that a
// repeated refusal has the same message.
func plain(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if s := status.Status(); s.Message != "" {
			return withoutName(s)
		}
	}
	return err.Error()
}

// withoutName returns the status message with the object's name replaced.
func withoutName(s metav1.Status) string {
	if s.Details == nil || s.Details.Name == "" {
		return s.Message
	}
	return strings.ReplaceAll(s.Message, `"`+s.Details.Name+`"`, string(corev1.ResourcePods)[:3])
}
