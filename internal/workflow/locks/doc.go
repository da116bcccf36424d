// Package locks decides who holds the mutexes and semaphores of workflows: a table without client, clock or goroutine.
//
//	engine ──Request──▶ Table.Acquire ──State──▶ engine     granted, or waiting in line
//	engine ──holder───▶ Table.Release ──States──▶ engines   those who are granted now
//
// A holder asks for all its locks at once and gets all of them or waits: it never holds some and waits for others, so there
// are no deadlocks. Every lock has a line of those that wait, in one order for all locks: priority, then the age of the
// workflow, then of the request. A request is granted when it is first in the line of each of its locks and all have room.
// Nobody overtakes on a lock, so nobody starves.
//
// What is held is recorded in the statuses of workflows before anything runs under it. After a restart, Restore takes it from
// there for all workflows, and only then may the first Acquire come.
package locks
