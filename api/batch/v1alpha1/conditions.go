package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition returns the condition of that type, or nil. The entries that record phases have no type and are not found.
func (s *JobStatus) Condition(t JobConditionType) *JobCondition {
	for i := range s.Conditions {
		if t != "" && s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// SetCondition sets the condition of that type and says whether anything changed. The time changes only when the
// condition's status does.
func (s *JobStatus) SetCondition(t JobConditionType, status corev1.ConditionStatus, reason, message string, now metav1.Time) bool {
	c := s.Condition(t)
	if c == nil {
		// In front, because some clients take the last entry for the phase.
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

// RemoveCondition removes the condition of that type and says whether there was one.
func (s *JobStatus) RemoveCondition(t JobConditionType) bool {
	for i := range s.Conditions {
		if t != "" && s.Conditions[i].Type == t {
			s.Conditions = append(s.Conditions[:i], s.Conditions[i+1:]...)
			return true
		}
	}
	return false
}

// SetPhase makes phase the state, with its entry in the history of phases (one per phase, the latest time), and says
// whether anything changed. The times change only when the phase does.
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
