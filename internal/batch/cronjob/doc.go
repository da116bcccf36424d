// Package cronjob decides when CronJobs create Jobs. Package internal/cron holds the controller that
// creates them.
//
// # What happens to a time that passed
//
// Only the last due time counts: its Job is created late, unless it is later than
// startingDeadlineSeconds. A due time at which a Job is active stays due under the policy Forbid,
// until the Job ends or the deadline is over. A Job that the API server refuses is tried again,
// with growing delays, for as long as its time is due.
package cronjob
