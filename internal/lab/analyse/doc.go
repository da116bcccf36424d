// Package analyse draws conclusions from what an API server was seen to do: when pods were created and got their nodes,
// what was written by whom, and whether anything happened that must not. It is a pure function from events and the state
// at rest to a Result: no clock, no client, no file.
//
//	[]Event (audit log or watch) ─┐
//	pods and jobs at rest ────────┼──▶ Analyse ──▶ Result: times, curves, stalls, latency, writes, violations
//	what was asked for ───────────┘
//
// A pod is CREATED when the server has answered its create with success, and SCHEDULED when it first has a node: its
// creation when it was created bound, else its binding.
package analyse
