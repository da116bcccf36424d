// Package applications holds the verbs of applications, which are below 'lockstep app', and of
// definitions, which are below 'lockstep def'.
//
//	up, delete ──▶ changes of applications; workflow, rollback ──▶ changes of how they are deployed
//	ls, status, revisions, diff, logs ──▶ what is in the cluster
//	exec, port-forward ──▶ pods of an application
//	dry-run, def ──▶ definitions.go: what definitions make of manifests, on this machine
//
// What the verbs do in the cluster is in package submit/applications.
package applications
