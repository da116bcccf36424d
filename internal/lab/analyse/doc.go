// Package analyse draws conclusions from what an API server was seen to do: when pods were created
// and got their nodes, which client wrote what, and whether an invariant was violated. It is a pure
// function from events and the state at rest to a Result: no clock, no client, no file.
//
//	[]Event (audit log or watch) ─┐
//	pods and jobs at rest ────────┼──▶ Analyse ──▶ Result: times, curves, stalls, latency, writes, violations
//	what was asked for ───────────┘
//
// A pod is CREATED when the server has answered its create with success, and SCHEDULED when it
// first has a node: at its creation if it was created bound, else at its binding.
package analyse
