// Package controlloop implements the loop of a controller that keeps a record per key and works on
// each key with one worker at a time.
//
//	Post, PostLatest ──▶ record's inbox ──┐
//	Wake, WakeAfter ──────────────────────┴─▶ queue of keys ──▶ Workers × Turn(key) ──Deliver──▶ posted functions, on the record
//
// A key is in the queue once however often it was woken, so many events cost one turn. While a turn
// runs, its key may be woken again: the next turn follows this one, on any worker. So only the turn
// of a key touches its record, and records need no locks. All other code changes a record by
// posting functions, which the next turn runs.
//
// # What fails, and what takes time
//
// A turn hands its writes to the writer, and the answers are posted to the record; a turn that must
// wait for an answer yields. A key of which something failed is woken again by Retry, after a delay
// that doubles each time; a record that must do nothing meanwhile has a Backoff of its own and
// looks at what is left of it. A question to something outside this process is either asked in
// Yield, which lets another key take the place of the turn, or is a key of a Loop of its own: then
// it is asked once, however many wait for the answer.
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
