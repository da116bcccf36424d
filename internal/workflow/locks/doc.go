// Package locks decides who holds the mutexes and semaphores of workflows. It is a table without
// client, clock or goroutine.
//
//	engine ──Request──▶ Table.Acquire ──State──▶ engine     granted, or waiting in a queue
//	engine ──holder───▶ Table.Release ──States──▶ engines   of requests granted as a result
//
// A holder requests all its locks at once and gets all of them or waits: it never has some while it
// waits for others, so there are no deadlocks. Every lock has a queue of waiting requests, and all
// queues have the same order: priority, then the age of the workflow, then the age of the request.
// A request is granted when it is first in the queue of each of its locks and every one of these
// locks has a free place. No request overtakes another on a lock, so none starves.
//
// Held locks are recorded in the statuses of workflows before any pod runs under them. After a
// restart Restore takes them from the statuses; it must be called for all workflows before the
// first Acquire.
package locks
