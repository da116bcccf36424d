package flow

import (
	"fmt"
	"iter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// StepsOf iterates over the steps of a workflow, each followed by its sub-steps. s may be nil.
func StepsOf(s *oam.WorkflowStatus) iter.Seq[*oam.StepStatus] {
	return func(yield func(*oam.StepStatus) bool) {
		if s == nil {
			return
		}
		for i := range s.Steps {
			if !yield(&s.Steps[i].StepStatus) {
				return
			}
			for j := range s.Steps[i].SubSteps {
				if !yield(&s.Steps[i].SubSteps[j]) {
					return
				}
			}
		}
	}
}

// Ended reports whether a step has ended. A step that erred is run again and has not ended.
func Ended(st *oam.StepStatus) bool {
	switch st.Phase {
	case oam.StepSucceeded, oam.StepSkipped:
		return true
	case oam.StepFailed:
		return st.Reason != oam.StepReasonExecute
	}
	return false
}

// SuspendingSteps returns the names of the steps that wait to be resumed.
func SuspendingSteps(s *oam.WorkflowStatus) []string {
	var out []string
	for st := range StepsOf(s) {
		if st.Phase == oam.StepSuspending {
			out = append(out, st.Name)
		}
	}
	return out
}

// Terminate returns the status with all running steps failed. Steps that have not started are
// skipped in the next Advance, unless their conditions say otherwise.
func Terminate(s *oam.WorkflowStatus, now time.Time) *oam.WorkflowStatus {
	s = s.DeepCopy()
	if s == nil || s.Finished {
		return s
	}
	for st := range StepsOf(s) {
		if !Ended(st) && st.Phase != oam.StepPending {
			st.Phase, st.Reason, st.LastExecuteTime = oam.StepFailed, oam.StepReasonTerminate, metav1.NewTime(now).Rfc3339Copy()
		}
	}
	s.Terminated, s.Suspend = true, false
	return s
}

// conclude sets the workflow's status from the steps' states.
func (a *advance) conclude() {
	s := a.d.Status
	ended, failure := true, ""
	for i := range a.Program.Steps {
		st := a.steps[a.Program.Steps[i].Name]
		if st == nil || !Ended(st) {
			ended = false
			continue
		}
		if st.Phase == oam.StepFailed && failure == "" {
			failure = fmt.Sprintf("step %s failed", st.Name)
			if st.Message != "" {
				failure += ": " + st.Message
			}
		}
	}
	s.Suspend = a.Held || a.pausing()
	s.SuspendState = ""
	if s.Suspend {
		s.SuspendState = string(oam.StepSuspending)
	}
	s.Phase, s.Message = "executing", ""
	switch {
	case ended:
		s.Finished, s.EndTime, s.Suspend, s.SuspendState = true, a.now, false, ""
		s.Phase, s.Message = "succeeded", failure
		if failure != "" {
			s.Phase = "failed"
			if s.Terminated {
				s.Phase = "terminated"
			}
			s.Terminated = true
		}
	case s.Suspend:
		s.Phase = "suspending"
	}
}

// status returns the status entry of a step, and creates it if there is none.
func (a *advance) status(s *Step, group *oam.StepStatus) *oam.StepStatus {
	if st := a.steps[s.Name]; st != nil {
		return st
	}
	st := oam.StepStatus{ID: a.ID(s.Name), Name: s.Name, Type: s.Type}
	list := &a.d.Status.Steps
	if group == nil {
		*list = append(*list, oam.WorkflowStepStatus{StepStatus: st})
		at := &(*list)[len(*list)-1]
		at.SubSteps = make([]oam.StepStatus, 0, len(s.Sub))
		a.steps[s.Name] = &at.StepStatus
		return &at.StepStatus
	}
	for i := range *list {
		if (*list)[i].Name == group.Name {
			(*list)[i].SubSteps = append((*list)[i].SubSteps, st)
			at := &(*list)[i].SubSteps[len((*list)[i].SubSteps)-1]
			a.steps[s.Name] = at
			return at
		}
	}
	panic("a group without a status") // cannot happen: walk creates it first
}

// set moves a step to a phase. LastExecuteTime changes only if the phase, the reason or the message
// does.
func (a *advance) set(st *oam.StepStatus, phase oam.WorkflowStepPhase, reason, message string) {
	if st.FirstExecuteTime.IsZero() && phase != oam.StepPending {
		st.FirstExecuteTime = a.now
	}
	if st.Phase == phase && st.Reason == reason && st.Message == message {
		return
	}
	st.Phase, st.Reason, st.Message, st.LastExecuteTime = phase, reason, message, a.now
}

// endSub moves the steps of a group that have a status and have not ended to a phase.
func (a *advance) endSub(s *Step, phase oam.WorkflowStepPhase, reason string) {
	for i := range s.Sub {
		if st := a.steps[s.Sub[i].Name]; st != nil && !Ended(st) {
			a.set(st, phase, reason, "")
		}
	}
}
