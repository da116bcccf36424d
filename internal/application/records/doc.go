// Package records keeps the state of one Application between its turns that is not in the watch
// caches: the content of its ResourceTracker, and its writes that are under way.
//
//	ResourceTracker ──watch──▶ PackedCache ──Keeper.Load──▶ Tracker ◀──turn of the Application
//	       ▲                                                   │
//	       └──────────────── apiwriter ◀──Keeper.Write─────────┘
//
// The tracker names every object of the Application before that object is created, so no object is
// ever orphaned. It also stores, compressed, the objects as last applied, which are the base of
// three-way patches, the last revisions, and the state of the workflow. Each generation of the
// Application has a tracker, and the newest has this record: see generations.go.
//
// # Invariants
//
//   - Only turns of an Application use its Tracker and its Writes. Owner.Post posts the answers to
//     writes to its key.
//   - One write of a tracker is under way at a time.
package records
