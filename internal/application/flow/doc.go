// Package flow decides how an Application's workflow continues. The decision is a pure function of
// the steps, their states, the results of the running steps, and the time: the package has no
// client, clock, goroutine or log.
//
//	Program, status, outputs ──▶ Advance ──▶ status, outputs, steps to run, time of the next call
//	                               ▲                            │
//	                               └───────── results ◀─────────┘ the controller runs the steps
//
// A step goes through phases:
//
//	           its dependencies have ended                it ended
//	(pending) ──────────────────────────────▶ running ──────────────────────▶ succeeded
//	    │                                     │  ▲  │
//	    │ its condition is false       pause  │  │  │ an error: tried again, up to a limit
//	    ▼                                     ▼  │  ▼
//	 skipped                           suspending  failed (Execute)
//	                                                 │
//	                                                 ▼
//	                                               failed (FailedAfterRetries, Timeout, ...)
//
// A running step is run again in each round until it reports how it ended: to run a step is to ask
// for its state. After a step has failed permanently, the steps after it are skipped, unless their
// conditions say otherwise.
package flow
