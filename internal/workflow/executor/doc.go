// Package executor runs a container's command according to its plan. It is the core of
// lockstep-exec.
//
//	wait for the containers in After ─▶ start the command ─▶ forward signals, reap orphans
//	      stdout ──▶ stdout, and the last 256 KiB for the result
//	  ─▶ command ends ─▶ read output parameters ─▶ pack output artifacts
//	  ─▶ termination message, or WorkflowTaskResult ─▶ same exit code
//
// The executor is the first process of its container, in any image, even one without a shell or
// certificates. It is copied into pods, so the program is small: it depends only on the standard
// library and a few packages of this module that do so too.
//
// Containers of a pod notify each other through files in a shared volume. A container has a lock on
// a file of its own while it lives. The kernel releases the lock however the container ends, so no
// container waits for one that was killed.
package executor
