package flow

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
)

// historyMax bounds the phases of one Job in the status.
const historyMax = 20

// statusOf returns the status of a JobFlow without its state. What the Jobs do not tell any more is
// taken from the status before.
func statusOf(before *api.JobFlowStatus, states []*state, jobs map[string]*batch.Job) api.JobFlowStatus {
	s := api.JobFlowStatus{Conditions: map[string]api.Condition{}}
	for _, one := range states {
		c := before.Conditions[one.name]
		c.Phase, c.Reason, c.Message = one.phase, one.reason, one.message
		if c.Phase == "" {
			c.Phase = api.Waiting
		}
		if j := one.job; j != nil {
			c.CreateTimestamp, c.RunningDuration, c.TaskStatusCount = j.CreationTimestamp, j.Status.RunningDuration, j.Status.TaskStatusCount
		}
		s.Conditions[one.name] = c
		if c.Phase == api.Waiting {
			continue
		}
		list := &s.UnKnowJobs
		switch c.Phase {
		case batch.Pending:
			list = &s.PendingJobs
		case batch.Running, batch.Restarting:
			list = &s.RunningJobs
		case batch.Completing, batch.Completed:
			list = &s.CompletedJobs
		case batch.Terminating, batch.Terminated:
			list = &s.TerminatedJobs
		case batch.Failed:
			list = &s.FailedJobs
		}
		*list = append(*list, one.name)
		s.JobStatusList = append(s.JobStatusList, history(before, one))
	}
	if len(s.Conditions) == 0 {
		s.Conditions = nil
	}
	return s
}

// history returns the history of a Job, with its present phase.
func history(before *api.JobFlowStatus, s *state) api.JobStatus {
	h := api.JobStatus{Name: s.name}
	if i := slices.IndexFunc(before.JobStatusList, func(h api.JobStatus) bool { return h.Name == s.name }); i >= 0 {
		h = *before.JobStatusList[i].DeepCopy()
	}
	h.State = s.phase
	if s.job == nil {
		return h
	}
	since := s.job.Status.State.LastTransitionTime
	if since.IsZero() {
		since = s.job.CreationTimestamp
	}
	h.StartTimestamp, h.RestartCount = s.job.CreationTimestamp, s.job.Status.RetryCount
	if s.phase.Finished() {
		h.EndTimestamp = since
	}
	list := h.RunningHistories
	if n := len(list); n == 0 || list[n-1].State != s.phase {
		if n > 0 {
			list[n-1].EndTimestamp = since
		}
		list = append(list, api.JobRunningHistory{State: s.phase, StartTimestamp: since})
	}
	h.RunningHistories = list[max(0, len(list)-historyMax):]
	return h
}

// matters reports whether a change of the status is one of the order of Jobs, and not only of
// counts and times.
func matters(before, after *api.JobFlowStatus) bool {
	if before.State != after.State || len(before.Conditions) != len(after.Conditions) {
		return true
	}
	for name, now := range after.Conditions {
		was, found := before.Conditions[name]
		if !found || was.Phase.Finished() != now.Phase.Finished() || (was.Phase == api.Waiting) != (now.Phase == api.Waiting) || was.Reason != now.Reason {
			return true
		}
	}
	return false
}

func sameStatus(a, b *api.JobFlowStatus) bool { return equality.Semantic.DeepEqual(a, b) }
