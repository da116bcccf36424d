// Package submit does what a user does to a cluster: it reads manifests, sends them, and waits for the runs they start.
//
//	files, folders, stdin ──▶ Read ──▶ Send: runs are created, everything else is applied ──▶ Wait: until every run ended
//
// A run (a Job, a workflow) is a thing that happens once: sending it twice is an error, or two runs when it has a
// generateName. A Queue, PriorityClass or PodGroup is a thing that is: sending it again makes it so (server-side apply).
//
// It writes to the API server on its own, not through apiwriter: these are the user's objects, with the user's
// credentials, one at a time, and the user waits for each answer.
package submit
