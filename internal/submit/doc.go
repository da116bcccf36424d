// Package submit does what a user does with a cluster: it reads manifests, sends them, and waits
// for the runs that they start.
//
//	files, folders, stdin ──▶ Read ──▶ Send ──▶ Wait
//
// Send creates runs and applies all other objects. Wait returns when a run has ended.
//
// A run (a Job, a workflow) happens once: sending it twice is an error, or makes two runs if it has
// a generateName. A Queue, PriorityClass or PodGroup is a state: sending it a second time updates
// it (server-side apply).
//
// The package writes to the API server itself, not through apiwriter: the objects and credentials
// are the user's, objects are sent one at a time, and the user waits for each answer.
package submit
