// Package artifacts moves artifacts between a pod and the artifacts' stores. It is the core of
// lockstep-exec-io.
//
//	init:  S3, HTTP, git, volumes ──load──▶ unpack, mode ──▶ a volume that main mounts
//	wait:  main ends ──▶ what it has left in the shared volume ──save──▶ S3, HTTP ──▶ report
//	gc:    delete
//
// Secrets are files that only these containers mount; they are read on use and never appear in a
// message. The files that main left are not trusted: no link among them is followed out of the
// shared volume, where the secrets are.
package artifacts
