// Package keyed is the loop of a controller that works on many things, each under a key and each by one worker at a time.
//
//	Post, PostLatest ──▶ record's inbox ──┐
//	Wake, WakeAfter ──────────────────────┴─▶ queue of keys ──▶ Workers × Turn(key) ──Deliver──▶ what was posted, on the record
//
// A key is in the queue once however often it was woken, so many events cost one turn. While a turn runs its key may be
// woken again: the next turn follows this one, on any worker. So only the turn touches a record, and records need no locks;
// everything else speaks to them by posting functions, which the next turn has run.
//
// # Invariants
//
//   - No two turns of one key at a time, and at most Workers turns at all.
//   - A turn that waits for an answer steps Aside: it is then none of the Workers.
//   - A turn begins after every Wake and every Post, as long as Run has not been told to end.
//   - A posted function for which Post said true runs exactly once: in Deliver, or in Drop if it is addressed to Anyone.
//     Functions for a life of the key that is over are not run.
package keyed
