// Package cron decides when CronWorkflows start workflows, and counts them. The controller, which
// creates the workflows, is that of package internal/cron.
//
// # What happens to a time that passed
//
// Only the last due time counts. Its workflow is started late if it is late by at most the larger
// of startingDeadlineSeconds and Grace; otherwise the time was missed, and the cron waits for the
// next one. A due time is skipped if a workflow is active under the policy Forbid, or if `when` is
// false.
package cron
