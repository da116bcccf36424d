// Package handover is what the maker of a workflow's pod and the program in the pod tell each other.
//
//	pods.Build ──Plan, in an environment variable──▶ lockstep-exec ──Report, the termination message──▶ pods.Observe
//	                                                     └──────── what is too large for it ────────▶ WorkflowTaskResult
//
// A Plan says what is to be done around a container's own command: wait for others, capture the output, keep files. A Report
// says what came of it. A termination message has 4 KiB; a report that is larger is compressed, and if that is not enough the
// outputs go into a WorkflowTaskResult and the report only says so.
//
// The package imports nothing but the standard library: it is part of a program that is copied into pods.
package handover
