// Package executor runs a container's command as its plan says: lockstep-exec.
//
//	wait for the containers it comes after ─▶ start the command ─▶ forward signals, reap orphans ─▶ command ends
//	                                             stdout ──▶ stdout, and the last 256 KiB for the result
//	  ─▶ read output parameters ─▶ pack output artifacts ─▶ termination message, or WorkflowTaskResult ─▶ same exit code
//
// It is the first process of its container, in any image, also one without a shell or certificates. It depends on the
// standard library alone, so that the program stays small: it is copied into pods.
//
// Containers of a pod know of each other by files in a shared volume. A container holds a lock on a file of its own as long
// as it lives; the kernel releases it however the container ends, so nobody waits for one that was killed.
package executor
