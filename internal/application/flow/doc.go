// Package flow decides how the workflow of an application goes on: a function of the steps, of how far they are, of what
// the steps that run have come to, and of the time. It has no client, clock, goroutine or log.
//
//	Program, status, outputs ──▶ Advance ──▶ status, outputs, steps to run, when to look again
//	                               ▲                            │
//	                               └───────── results ◀─────────┘ the controller runs them, as often as it is told to
//
// A step goes through phases:
//
//	           what it depends on has ended               it came to its end
//	(pending) ──────────────────────────────▶ running ──────────────────────▶ succeeded
//	    │                                     │  ▲  │
//	    │ its condition is false       pause  │  │  │ an error: tried again, up to a limit
//	    ▼                                     ▼  │  ▼
//	 skipped                           suspending  failed (Execute) ──▶ failed (FailedAfterRetries, Action, Timeout, Terminate)
//
// A step that runs is run again at every look, until it says how it ended: running it is asking how it stands. When a step
// has failed for good, those after it are skipped, but for those whose condition says otherwise.
package flow
