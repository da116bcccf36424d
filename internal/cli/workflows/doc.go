// Package workflows holds the verbs of workflows, their templates and crons, and the archive.
//
//	list, get.go ──▶ list and get of workflows, in the cluster or the archive
//	watch, wait, logs ──▶ following a workflow
//	change.go ──▶ suspend, resume, stop, terminate, node set, delete
//	rerun.go ──▶ retry, resubmit
//	templates.go, crons.go ──▶ template, cluster-template and cron
//	submit.go ──▶ the flags for workflows of the verb submit in package jobs
//
// Package submit/workflows does for the verbs what they do in the cluster.
package workflows
