// Package cron runs CronWorkflows: it creates their workflows when their schedules say so, and keeps account of them.
//
//	CronWorkflow ─┐
//	              ├─▶ decide(cron, its workflows, now) ─▶ start, terminate, delete, status, when to look again
//	workflows ────┘            pure                              │
//	  (metadata only)                                            ▼
//	                                                       apiwriter, a timer
//
// A workflow is named after its cron and the time that it was scheduled for, <cron>-<unix seconds>: however often that time is
// looked at, by however many managers, it is created once.
//
// # What happens to a time that passed
//
// Only the last time that passed counts. It is started late when it is at most the larger of startingDeadlineSeconds and
// Grace late; otherwise it was missed, and the next one is waited for. Under Forbid, a time at which a workflow is
// active is passed over; a time at which `when` is false likewise.
package cron
