// Package steward is the manager's part in NodeTopologies: it finds out which agents are gone, and has pinned pods moved
// within their nodes.
//
//	agents' pods, leases ─▶ alive ───────────────┐
//	                                             ├─▶ status.conditions[AgentAlive], status.repack
//	repack, or the policy ─▶ repacking ──────────┘
//	   ▲                        │ plan (package repack)
//	   │                        ▼
//	   │            scheduler: are the CPUs still free? then the pod holds both sets
//	   │                        │
//	   │                        ▼ patch of the result annotation
//	   └─ status.moved ◀─ agent: everything off the old CPUs, onto the new ones
//
// # A move
//
// The pod's annotation is rewritten, once: with its new CPUs, those that it is moved away from, and a number. It holds both
// from before the write, in the scheduler's memory, until the agent reports the number in status.moved, when it holds the new
// ones alone. Moves that need each other's CPUs are in one wave after the other, so that no CPU has two owners at any time,
// whoever dies in between: what is under way is read from the annotations and status.moved, by the scheduler, the agent and
// the next manager alike.
//
// A move that the agent cannot make is taken back by another, from what the annotation says (see settle.go). So each move is
// made or is not; what a repack has moved before one fails stays where it is, for every move leaves a valid state.
//
// After each wave a new plan is made of what is there then. A pod is moved once at most in one repack, which bounds it.
//
// # Whose pods
//
// Moved are pods of Lockstep's schedulers that were given their CPUs exclusively and on the machine as it is now, and that do
// not say cpu.lockstep.dev/move: "false". Everything else on the node stays: the kubelet's own pins, shared CPUs, pods that
// are on their way out.
//
// # At rest
//
// Nothing is written. That an agent is gone is one write, that it is back another.
package steward
