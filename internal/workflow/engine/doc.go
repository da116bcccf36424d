// Package engine decides how a workflow goes on: a state machine without client, clock, goroutine or log.
//
//	spec, status ──New──▶ Run ──Step(now, events)──▶ Result: pods to create and delete, nodes that changed, when to wake
//	                       ▲                            │
//	                       └── pod states, resumes ◀────┘ the controller acts, observes, and writes the status
//
// A Run is a tree of what is being executed, beside the flat map of nodes that is the status:
//
//	frame      an instance of a steps or dag template: a node, inputs, and a member for each step or task
//	member     a step or task of a frame: one child, or one for each item of its loop
//	child      one call of a member: the template's node, then its exit handler and hooks
//	retry      the attempts at a template
//	leaf       a pod, a request or a pause
//
// Work flows up: a node that is fulfilled tells its owner, the owner starts what follows. An event touches its leaf and the
// frames above that have something to do, never the finished nodes; so the cost of an event does not depend on how many
// there are. Nodes that are fulfilled wait in a queue for their owner to be told, so chains of any length need no stack.
//
// After a restart New and the first Step build the tree again by executing the workflow over the nodes that are already in
// the status: what is fulfilled is taken as it is and not entered. Everything the engine decides it decides from the spec,
// the status, the events and the time it is given, so that the rebuilt tree is the one that was lost.
//
// Expressions that are not cheap are evaluated by Config.Evaluate, for whose answers a Step waits. They are functions of their variables.
//
// An unresolvable reference ends its node in phase Error, with a message that says which.
package engine
