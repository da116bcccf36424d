// Package executor runs a container's command according to its plan. It is the core of
// lockstep-exec.
//
//	wait for the containers it comes after ─▶ start the command ─▶ forward signals, reap orphans ─▶ command ends
//	                                             stdout ──▶ stdout, and the last 256 KiB for the result
//	  ─▶ read output parameters ─▶ pack output artifacts ─▶ termination message, or WorkflowTaskResult ─▶ same exit code
//
// The executor is the first process of its container, in any image, even one without a shell or
// certificates. It depends only on the standard library and a few packages of this module that do
// so too, to keep the program small: it is copied into pods.
//
// Containers of a pod learn about each other through files in a shared volume. A container holds a
// lock on a file of its own as long as it lives; the kernel releases the lock however the container
// ends, so nobody waits for a container that was killed.
package executor
