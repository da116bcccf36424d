// Package lifecycle decides what a batch job does next. It is pure: counts of pods and a request in, a step out. React says
// which of the job's policies, if any, makes a request of something that happened.
//
//	     ┌──────────── RestartJob, ResumeJob ◀───────────────┐
//	     ▼                                                   │
//	Restarting ─drained─▶ Pending ──enough pods run──▶ Running ──every pod ended──▶ Completed | Failed
//	     │                   ▲                           │ │
//	     │ no retry left     └──── fewer than the ───────┘ ├─AbortJob─────▶ Aborting ────drained──▶ Aborted
//	     ▼                         minimum, and no room    ├─CompleteJob──▶ Completing ──drained──▶ Completed
//	   Failed                                              └─TerminateJob─▶ Terminating ─drained──▶ Terminated
//
// The arrows out of Running leave Pending as well. Completed, Failed and Terminated are final: nothing moves a job out of
// them. "Drained" means that no pod is pending, running or on its way out.
//
// Invariants, held by property tests: a job that is stopping or stopped starts no pods; a final phase is never left; a step
// taken twice from the same counts is the same step.
package lifecycle
