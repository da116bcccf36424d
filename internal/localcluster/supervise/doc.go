// Package supervise keeps a local cluster running in the background.
//
//	lockstep up ── starts ──▶ supervisor (own session) ── starts, watches, restarts ──▶ components
//	    ▲                          │
//	    └── events over a pipe ────┤
//	                               └── state.json ──▶ lockstep status, lockstep down
//
// The supervisor is the only process that starts and stops components. It has a lock for the
// cluster's directory while it lives, so there is at most one. Other processes read its state file,
// which identifies a process by pid and start time, so that a reused pid is never signalled. If the
// supervisor is killed, the kernel kills the components too. Down nevertheless ends each recorded
// component that still runs, and removes the directory.
package supervise
