// Package artifacts moves artifacts between a pod and where they are kept: lockstep-exec-io.
//
//	init:  S3, HTTP, git, volumes ──load──▶ unpack, mode ──▶ a volume that main mounts
//	wait:  main ends ──▶ what it has left in the shared volume ──save──▶ S3, HTTP ──▶ report
//	gc:    delete
//
// Secrets are files that only these containers have; they are read when they are needed, and in no message. What main has
// left is not trusted: a link in it is never followed out of the shared volume, where the secrets would be.
package artifacts
