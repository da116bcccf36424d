package batch

import (
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// plain returns the server's message without the object's name, so that a repeated refusal has the
// same message for every pod.
func plain(err error) string {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || answer.Status().Message == "" {
		return err.Error()
	}
	s := answer.Status()
	if s.Details == nil || s.Details.Name == "" {
		return s.Message
	}
	return strings.ReplaceAll(s.Message, `"`+s.Details.Name+`"`, "pod")
}
