package deploy

import (
	"time"

	"lockstep.dev/lockstep/internal/application/flow"
)

// Erred counts an error of a component, or of planning if component is empty, if its next try is
// due. It reports whether the component has been tried as often as a step of a workflow is, and
// otherwise enqueues the Application for the next try.
func (a *State) Erred(component string, now time.Time) (failed bool) {
	try := a.tries[component]
	if try.Count < flow.TriesMax && !now.Before(try.Next) {
		try, _ = try.Erred(now)
		if a.tries == nil {
			a.tries = map[string]flow.Try{}
		}
		a.tries[component] = try
	}
	if try.Count < flow.TriesMax {
		a.WakeAfter(try.Next.Sub(now))
	}
	return try.Count >= flow.TriesMax
}

// waitsToRetry reports whether a failed write must not be retried yet. It enqueues the Application
// for the end of the backoff: an earlier turn has replaced the one that was planned for it.
func (a *State) waitsToRetry(name string, now time.Time) bool {
	left, waits := a.Writes.Waits(name, now)
	if left > 0 {
		a.WakeAfter(left)
	}
	return waits
}

// HasErrors reports whether planning or a component has failed lately.
func (a *State) HasErrors() bool { return len(a.tries) > 0 }

// Succeeded removes the counted errors of a component, or those of planning if component is empty.
func (a *State) Succeeded(component string) { delete(a.tries, component) }

// ForgetErrors resets all counted errors and the backoff of writes.
func (a *State) ForgetErrors() {
	a.tries = nil
	a.Writes.Forget()
}

// CountErrors counts the errors of the components of an Application that is deployed at once and
// has not been deployed completely yet.
func (a *State) CountErrors(p *Progress, now time.Time) {
	if p.Finished {
		a.tries = nil
	}
	if !p.Planned || p.Finished {
		return
	}
	for i := range p.Components {
		state, key := &p.Components[i], a.Plan.Components[i].Key()
		switch {
		case state.Problem != "":
			state.Failed = a.Erred(key, now)
		case state.Applied:
			a.Succeeded(key)
		}
	}
}
