// Package engine decides what a workflow does next. It is a state machine without client, clock,
// goroutine or log.
//
//	spec, status ──New──▶ Run ──Step(now, events)──▶ Result: pods to create and delete,
//	                       ▲                            │    changed nodes, time to wake
//	                       └── pod states, resumes ◀────┘ the controller acts, observes,
//	                                                      and writes the status
//
// A Run holds a tree of the parts under execution, next to the flat map of nodes that is the
// status:
//
//	frame    an instance of a steps or dag template: a node, inputs, a member per step or task
//	member   a step or task of a frame: one child, or one for each item of its loop
//	child    one call of a member: the template's node, then its exit handler and hooks
//	retry    the attempts at a template
//	leaf     a pod, a request or a pause
//
// Completion propagates up: a fulfilled node notifies its owner, and the owner starts the nodes
// that follow. An event touches its leaf and the frames above it that can advance, never the
// finished nodes, so the cost of an event does not depend on the number of nodes. Fulfilled nodes
// wait in a queue until their owner is notified, so chains of any length need no stack.
//
// After a restart New and the first Step rebuild the tree: they execute the workflow over the nodes
// in the status, and keep fulfilled nodes without entering them. Every decision is a function of
// the spec, the status, the events and the given time, so the rebuilt tree equals the lost one.
//
// Config.Evaluate evaluates the expressions that are not cheap; a Step waits for its answers.
// Expressions are functions of their variables.
//
// A reference that cannot be resolved ends its node in phase Error, with a message that names the
// reference.
package engine
