// Package nodecontroller is the manager's part of maintaining NodeTopologies: it detects agents
// that are gone, and moves pinned pods within their nodes.
//
//	agents' pods, leases ─▶ alive ───────────────┐
//	                                             ├─▶ status.conditions[AgentAlive], status.repack
//	repack, or the policy ─▶ repacking ──────────┘
//	   ▲                        │ plan (package repack)
//	   │                        ▼
//	   │            scheduler: are the CPUs still free? then the pod holds both sets
//	   │                        │
//	   │                        ▼ patch of the result annotation
//	   └─ status.moved ◀─ agent: moves all containers from the old CPUs to the new ones
//
// # A move
//
// The pod's annotation is rewritten once, with its new CPUs, its previous CPUs and the number of
// the move. The pod holds both sets of CPUs from before the write, in the scheduler's memory, until
// the agent reports the number in status.moved; then it holds only the new CPUs. Moves that need
// each other's CPUs are made in successive waves, so that no CPU has two owners at any time,
// whichever process dies in between. The scheduler, the agent and the next manager all read the
// state of moves from the annotations and from status.moved.
//
// A move that the agent cannot make is reversed by another move, based on the annotation (see
// pending_moves.go). So each move is either made or not. Pods that a repack has moved before a move
// fails stay where they are, because every move leaves a valid state.
//
// After each wave the plan is continued, or a new one is made from the current state if it cannot be. A
// pod is moved at most once in one repack, which bounds the repack.
//
// # Which pods are moved
//
// A repack moves pods of Lockstep's schedulers that were given their CPUs for the machine's present
// topology, unless they have the annotation cpu.lockstep.dev/move: "false". First it moves pods with
// CPUs of their own; if that frees nothing, it brings pods that share CPUs together. Everything else
// on the node stays: the kubelet's own pins, and pods that are being deleted. A pod that waits for
// CPUs of its own starts the policy at once (CPUsShort).
//
// # Resized pods
//
// A pod that was resized in place gets as many CPUs as it requests then, by a move, whatever the policy
// (resizing.go).
//
// # When idle
//
// Nothing is written while nothing changes. An agent that stops causes one write, and its return
// another.
package nodecontroller
