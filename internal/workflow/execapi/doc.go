// Package execapi defines the messages between the builder of a workflow's pod and the programs in
// the pod.
//
//	pods.Build ──Plan, in an environment variable──▶ lockstep-exec ──Report, the termination message──▶ pods.Observe
//	                                                     └──────── what is too large for it ────────▶ WorkflowTaskResult
//
// A Plan says what to do around a container's own command: wait for other containers, capture the
// output, save files. A Report says how that ended. A termination message has at most 4 KiB; a
// larger report is compressed, and if that is not enough the outputs go into a WorkflowTaskResult,
// to which the report refers.
//
// The package imports only the standard library and package unpack, because it is part of a program
// that is copied into pods.
package execapi
