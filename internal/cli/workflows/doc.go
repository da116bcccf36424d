// Package workflows holds the verbs of workflows, their templates and crons, and the archive.
//
//	list, get.go ──▶ list and get of workflows, in the cluster or the archive
//	watch, wait, logs ──▶ following a workflow
//	change.go ──▶ suspend, resume, stop, terminate, node set, delete
//	rerun.go ──▶ retry, resubmit
//	templates.go, crons.go ──▶ template, cluster-template and cron
//	submit.go ──▶ what the verb submit of package jobs takes for workflows
//
// What the verbs do in the cluster is in package submit/workflows.
package workflows
