// Package scheduler turns waiting gangs into placements.
//
//	Submit ─▶ queue ─▶ share: whose turn ─▶ place: all or nothing ─▶ assume ─▶ Owner.Commit
//	            ▲                                │ no room
//	            │                                └─▶ evict: who leaves ─▶ Evictor.Evict
//	            └── helpful changes wake gangs ◀── Forget, pod deleted, node added
//
// A cycle runs when there is work; there is no scheduling period. The decisions are pure functions
// (packages place, share and evict). This package is the shell around them: it owns the queue, takes
// snapshots and informs owners.
package scheduler
