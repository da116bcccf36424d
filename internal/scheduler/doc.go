// Package scheduler turns waiting gangs into placements.
//
//	Submit ─▶ queue ─▶ share: whose turn ─▶ place: all or nothing ─▶ assume ─▶ Owner.Commit
//	            ▲                                │ no room
//	            │                                └─▶ evict: who leaves ─▶ Evictor.Evict
//	            │                                    backfill: where it starts soonest, once it is overdue
//	            └── helpful changes wake gangs ◀── Forget, pod deleted, node added
//
// A cycle runs when there is work; there is no scheduling period. The decisions are pure functions
// (packages place, share, evict and backfill). This package is the shell around them: it owns the queue, takes
// snapshots and informs owners.
package scheduler
