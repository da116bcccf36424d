package flow

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// SuspendingSteps returns the names of the steps that wait to be resumed.
func SuspendingSteps(s *oam.WorkflowStatus) []string {
	var out []string
	if s == nil {
		return nil
	}
	for i := range s.Steps {
		if s.Steps[i].Phase == oam.StepSuspending {
			out = append(out, s.Steps[i].Name)
		}
		for j := range s.Steps[i].SubSteps {
			if s.Steps[i].SubSteps[j].Phase == oam.StepSuspending {
				out = append(out, s.Steps[i].SubSteps[j].Name)
			}
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
	end := func(st *oam.StepStatus) {
		if Ended(st) || st.Phase == oam.StepPending {
			return
		}
		st.Phase, st.Reason, st.LastExecuteTime = oam.StepFailed, oam.StepReasonTerminate, metav1.NewTime(now).Rfc3339Copy()
	}
	for i := range s.Steps {
		end(&s.Steps[i].StepStatus)
		for j := range s.Steps[i].SubSteps {
			end(&s.Steps[i].SubSteps[j])
		}
	}
	s.Terminated, s.Suspend = true, false
	return s
}
