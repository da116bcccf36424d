// Package cron runs CronWorkflows: it creates their workflows on schedule and keeps account of
// them.
//
//	CronWorkflow ─┐
//	              ├─▶ decide(cron, its workflows, now) ─▶ start, terminate, delete, status, when to look again
//	workflows ────┘            pure                              │
//	  (metadata only)                                            ▼
//	                                                       apiwriter, a timer
//
// The name of a workflow is that of its cron and the time it was scheduled for, <cron>-<unix
// seconds>: so however often and by however many managers that time is processed, the workflow is
// created once.
//
// # What happens to a time that passed
//
// Only the last due time counts. It is started late if it is late by at most the larger of
// startingDeadlineSeconds and Grace; otherwise it was missed, and the cron waits for the next one.
// A due time is skipped if a workflow is active under the policy Forbid, or if `when` is false.
package cron
