package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition returns the condition of type t, or nil. It does not find the entries that record
// phases, which have no type.
func (s *JobStatus) Condition(t JobConditionType) *JobCondition {
	for i := range s.Conditions {
		if t != "" && s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetCondition sets the condition of type t and reports whether anything changed. The time changes
// only if the condition's status changes.
func (s *JobStatus) SetCondition(t JobConditionType, status corev1.ConditionStatus, reason, message string, now metav1.Time) bool {
	c := s.Condition(t)
	if c == nil {
		// Conditions come before phases, because some clients read the phase from the last entry.
		s.Conditions = append([]JobCondition{{
			Type: t, Status: JobPhase(status), Reason: reason, Message: message, LastTransitionTime: &now,
		}}, s.Conditions...)
		return true
	}
	if c.Status == JobPhase(status) && c.Reason == reason && c.Message == message {
		return false
	}
	if c.Status != JobPhase(status) {
		c.LastTransitionTime = &now
	}
	c.Status, c.Reason, c.Message = JobPhase(status), reason, message
	return true
}

// RemoveCondition removes the condition of type t and reports whether there was one.
func (s *JobStatus) RemoveCondition(t JobConditionType) bool {
	before := len(s.Conditions)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c JobCondition) bool { return t != "" && c.Type == t })
	return len(s.Conditions) < before
}

// Unwritten reports whether no status has been written: the phase is empty, or the CRD's default.
func (s *JobStatus) Unwritten() bool {
	return s.State.Phase == "" || s.State.Phase == Pending && s.State.LastTransitionTime.IsZero()
}

// SetPhase sets the job's phase and the phase's entry in the history, and reports whether anything
// changed. The history has one entry per phase, with the latest time. The times change only if the
// phase changes.
func (s *JobStatus) SetPhase(phase JobPhase, reason, message string, now metav1.Time) bool {
	if s.State.Phase == phase {
		changed := s.State.Reason != reason || s.State.Message != message
		s.State.Reason, s.State.Message = reason, message
		return changed
	}
	s.State = JobState{Phase: phase, Reason: reason, Message: message, LastTransitionTime: now}
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == "" && c.Status == phase {
			c.LastTransitionTime = &now
			return true
		}
	}
	s.Conditions = append(s.Conditions, JobCondition{Status: phase, LastTransitionTime: &now})
	return true
}
