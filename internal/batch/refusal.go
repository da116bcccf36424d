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

// refuse puts the job's writes into backoff. The job's other placements are given back: most likely
// they would be refused too, and other jobs can use the room.
func (c *Controller) refuse(r *record, reason string, err error) {
	c.loop.WakeAfter(r.key, r.refusal.Note(c.Clock.Now(), reason, plain(err)))
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
