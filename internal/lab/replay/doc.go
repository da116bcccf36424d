// Package replay drives a system with a trace of load: jobs arrive when the trace says, with as many
// pods as it says, and are deleted when all their pods have had nodes for their duration.
//
//	trace.Trace ──▶ creates at their times ──▶ API server ──▶ audit log: when does each job have its nodes?
//	                deletes after the duration ◀─────────────────┘
package replay
