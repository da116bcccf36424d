// Package analyse computes the results of a run from the observed events: when pods were created
// and got their nodes, which client wrote what, and whether an invariant was violated. Analyse is a
// pure function from events and the state at rest to a Result: no clock, no client, no file.
//
//	[]Event (audit log or watch) ─┐              Result: times, curves, stalls,
//	pods and jobs at rest ────────┼──▶ Analyse ──▶ latencies, writes, violations
//	requested jobs ───────────────┘
//
// A pod is CREATED when the server has answered its create with success, and SCHEDULED when it
// first has a node: at its creation if it was created bound, else at its binding.
package analyse
