// Package supervise keeps a local cluster running in the background.
//
//	lockstep up ── starts ──▶ supervisor (a session of its own) ── starts, watches, restarts ──▶ components
//	    ▲                          │
//	    └── events over a pipe ────┤
//	                               └── state.json ──▶ lockstep status, lockstep down
//
// The supervisor is the only process that starts and stops components. It holds a lock on the
// cluster's directory while it lives, so there is at most one. Everything else works on its record:
// a process is identified by pid and start time, so that a reused pid is never signalled. If the
// supervisor is killed, the kernel kills the components too; even so Down looks for each recorded
// component, and removes the directory.
package supervise
