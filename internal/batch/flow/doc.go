// Package flow runs JobFlows: it creates their Jobs in the order of their dependencies. It also
// keeps the status of JobTemplates.
//
//	JobFlow ─────┐
//	JobTemplate ─┼─▶ decide ─▶ probes to ask ─▶ decide ─▶ Jobs to create, status, Jobs to delete
//	Job ─────────┘     pure        egress         pure             │
//	                                                               ▼
//	                                                           apiwriter
//
// A turn compares the JobFlow with its Jobs, and depends on no event. The name of a Job follows from
// the JobFlow and the entry, JOBFLOW-NAME, so a Job is created once, however often it is decided. A
// Job that the status has, or that this process has created, is not created again after its
// deletion: if its end is not known, the JobFlow fails and says so. A Job with a time to live is
// kept until the status says how it ended (Unrecorded).
//
// # Writes
//
// One create for each Job. Statuses coalesce: Jobs that are created in one turn have one status
// write, at once, other changes that matter to the order follow each other at 500 ms at least, and
// counts of pods at 5 s.
package flow
