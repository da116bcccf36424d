package lifecycle

import (
	"slices"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// React returns the policy that applies to an event: the first match among the task's policies,
// else among the job's. It returns nil if no policy matches, or if the first match asks for
// ResumeJob: policies apply only to jobs that are not suspended, so there is nothing to resume. exit
// is the exit code of a failed pod, else 0. A policy on pending pods needs a timeout, because a pod
// that merely waits is no reason to act at once.
func React(task, job []batch.LifecyclePolicy, event bus.Event, exit int32) *batch.LifecyclePolicy {
	for _, list := range [...][]batch.LifecyclePolicy{task, job} {
		for i := range list {
			p := &list[i]
			if !fits(p, event, exit) || event == bus.PodPendingEvent && (p.Timeout == nil || p.Timeout.Duration <= 0) {
				continue
			}
			if p.Action == bus.ResumeJobAction {
				return nil
			}
			return p
		}
	}
	return nil
}

func fits(p *batch.LifecyclePolicy, event bus.Event, exit int32) bool {
	if p.ExitCode != nil {
		return event == bus.PodFailedEvent && *p.ExitCode == exit && exit != 0
	}
	// A job that its owner resizes has not failed: policies on any event do not cover JobUpdated.
	any := event != bus.JobUpdatedEvent && (p.Event == bus.AnyEvent || slices.Contains(p.Events, bus.AnyEvent))
	return any || p.Event == event || slices.Contains(p.Events, event)
}
