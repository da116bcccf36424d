// Package cron runs CronWorkflows: it creates their workflows on schedule and counts them.
//
//	CronWorkflow ─┐
//	              ├─▶ decide(cron, workflows, now) ─▶ start, terminate, delete, status, time to wake
//	workflows ────┘            pure                          │
//	  (metadata only)                                        ▼
//	                                                   apiwriter, a timer
//
// The name of a workflow consists of the name of its cron and the time it was scheduled for,
// <cron>-<unix seconds>. So the workflow is created once, however often and by however many
// managers that time is processed.
//
// # What happens to a time that passed
//
// Only the last due time counts. Its workflow is started late if it is late by at most the larger
// of startingDeadlineSeconds and Grace; otherwise the time was missed, and the cron waits for the
// next one. A due time is skipped if a workflow is active under the policy Forbid, or if `when` is
// false.
package cron
