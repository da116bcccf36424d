// Package cron runs objects on a schedule: it is the controller of CronWorkflows and of CronJobs,
// whose packages decide what to do about one cron.
//
//	cron ─┐
//	      ├─▶ Decide(cron, runs, now) ─▶ Plan: replace, start, status, remove, time to wake
//	runs ─┘          pure                 │
//	                                      ▼
//	                               apiwriter, a timer
//
// The name of a run consists of the name of its cron and the time it was scheduled for,
// <cron>-<unix seconds>. So the run is created once, however often and by however many managers that
// time is processed. The status is written on condition of the version of the cron that the plan
// was made from.
//
// Package schedule computes the times.
package cron
