// Package lifecycle decides what a batch job does next. It is pure: counts of pods and a requested
// action in, a step out. React selects the policy of the job, if any, that turns an event into an
// action.
//
//	     ┌───── RestartJob, ResumeJob ◀───────────┐
//	     ▼                                        │
//	Restarting ─drained─▶ Pending ─enough run─▶ Running ─every pod ended─▶ Completed | Failed
//	     │                   ▲                  │ │
//	     │ no retry left     └── too few and ───┘ ├─AbortJob─────▶ Aborting ────drained─▶ Aborted
//	     ▼                       no room          ├─CompleteJob──▶ Completing ──drained─▶ Completed
//	   Failed                                     └─TerminateJob─▶ Terminating ─drained─▶ Terminated
//
// The transitions out of Running also apply to Pending. Completed, Failed and Terminated are final:
// no transition leaves them. "Drained" means that no pod is pending, running, unknown or
// terminating.
//
// Invariants, checked by property tests: a stopping or stopped job starts no pods; a final phase is
// never left; a step taken twice from the same counts is the same step.
package lifecycle
