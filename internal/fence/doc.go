// Package fence says until when the holder of a lease may act on it.
//
// A Term is the time for which one holder has a lease. Whoever renews the lease extends the term; whoever sends something that
// only the holder may send asks Holds as late as possible before it is sent:
//
//	           Extend                    time passes                    Extend
//	(new) ───────────────▶ holds ───────────────────────▶ lapsed ─────────────────▶ holds, if the lease proves that nobody
//	                         │                              │                        else had it meanwhile
//	                         └───────────── End ────────────┴──────────▶ ended, for good
//
// Others take a lease over some time after they saw it renewed last. A term is extended until earlier than that, counted from the
// moment at which the renewal was sent, so that what was sent within the term arrives before anyone else acts.
//
// Time is the time since the machine started, with the time for which it was suspended: a process that was stopped, or slept with
// its machine, finds its term lapsed when it wakes.
package fence
