// Package controlloop implements the loop of a controller that keeps a record per key and works on
// each key with one worker at a time.
//
//	Post, PostLatest ──▶ record's inbox ──┐
//	Wake, WakeAfter ──────────────────────┴─▶ queue of keys ──▶ Workers × Turn(key) ──Deliver──▶ posted functions, on the record
//
// A key is in the queue once however often it was woken, so many events cost one turn. If a key is
// woken while its turn runs, its next turn follows this one, on any worker. So only the turn of a
// key touches its record, and records need no locks. All other code changes a record by posting
// functions, which the next turn runs.
//
// # Failures and waiting
//
// A turn passes its writes to the writer, and the answers are posted to the record. After a
// failure, Retry wakes the key again, after a delay that doubles each time. A record that must not
// be worked on during the delay has a Backoff of its own, and checks Backoff.Left. A turn that must
// wait for an answer from outside this process calls Yield, so that another key takes its place. An
// answer that several keys need is a key of a Loop of its own: then there is one request, however
// many keys wait for it.
//
// # Invariants
//
//   - There are never two turns of one key at a time, and never more than Workers turns at all.
//   - A turn that waits for an answer can Yield: it does not count as one of the Workers meanwhile.
//   - A turn begins after every Wake and every Post, as long as the context of Run is not done.
//   - A posted function for which Post returned true runs exactly once if it is addressed to
//     Anyone: in Deliver or in Drop. A function addressed to a UID runs at most once, in a Deliver
//     for that UID; if the object with that UID is gone, it does not run.
package controlloop
