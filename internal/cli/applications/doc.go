// Package applications holds the verbs of applications, which are below 'lockstep app', and of
// definitions, which are below 'lockstep def'.
//
//	up, delete ──▶ change applications; workflow, rollback ──▶ change their deployment
//	ls, status, revisions, diff, logs ──▶ show what is in the cluster
//	exec, port-forward ──▶ connect to pods of an application
//	dry-run, def ──▶ definitions.go: render manifests with definitions, on this machine
//
// Package submit/applications does for the verbs what they do in the cluster.
package applications
