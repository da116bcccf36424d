// Package execapi defines the messages between the builder of a workflow's pod and the programs in
// the pod.
//
//	pods.Build ──Plan (environment variable)──▶ lockstep-exec
//	                 lockstep-exec ──Report (termination message)──▶ pods.Observe
//	                       └──────── larger outputs ───────────────▶ WorkflowTaskResult
//
// A Plan lists what to do around a container's own command: wait for other containers, capture the
// output, save files. A Report is the result. A termination message has at most 4 KiB; a larger
// report is compressed, and if that is not enough the outputs go into a WorkflowTaskResult, to
// which the report refers.
//
// The package imports only the standard library and package unpack, because it is part of a program
// that is copied into pods.
package execapi
