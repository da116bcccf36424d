package lifecycle

import (
	"slices"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// React is the policy that an event meets: the first that fits among those of the task, then among those of the job. exit is
// the exit code of a pod that failed, else 0. A pod that merely waits is no reason to act at once, so policies on it need
// a timeout.
func React(task, job []batch.LifecyclePolicy, event bus.Event, exit int32) *batch.LifecyclePolicy {
	for _, list := range [...][]batch.LifecyclePolicy{task, job} {
		for i := range list {
			p := &list[i]
			if fits(p, event, exit) && (event != bus.PodPendingEvent || p.Timeout != nil && p.Timeout.Duration > 0) {
				return p
			}
		}
	}
	return nil
}

func fits(p *batch.LifecyclePolicy, event bus.Event, exit int32) bool {
	if p.ExitCode != nil {
		return event == bus.PodFailedEvent && *p.ExitCode == exit && exit != 0
	}
	// A job whose owner makes it larger has not failed: that is an event only for policies that name it.
	any := event != bus.JobUpdatedEvent && (p.Event == bus.AnyEvent || slices.Contains(p.Events, bus.AnyEvent))
	return any || p.Event == event || slices.Contains(p.Events, event)
}
