// Package supervise keeps a local cluster running in the background.
//
//	lockstep up ── starts ──▶ supervisor (a session of its own) ── starts, watches, restarts ──▶ components
//	    ▲                          │
//	    └── events over a pipe ────┤
//	                               └── state.json ──▶ lockstep status, lockstep down
//
// The supervisor is the only process that starts and stops components. It holds a lock on the cluster's directory while it
// lives, so there is one at most. Everything else works on what it recorded: a process is named by pid and start time, so
// that a pid that was used again is never signalled. If the supervisor is killed, the kernel kills the components with it;
// Down still looks for each that was recorded, and removes the directory.
package supervise
