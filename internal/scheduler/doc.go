// Package scheduler turns waiting gangs into placements.
//
//	Submit(gang) ─▶ queue ─▶ share: whose turn ─▶ place: all-or-nothing on a snapshot ─▶ assume in cluster ─▶ Owner.Commit
//	                  ▲                                                                                          │
//	                  └── cluster changes wake what they may help ◀── cluster.Forget / pod deleted / node added ─┘
//
// A cycle runs when there is work; there is no scheduling period. What decides is pure (place, share); this package is
// the shell: it owns the queue, takes snapshots, and tells owners.
package scheduler
