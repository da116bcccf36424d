// Package fence tracks how long the holder of a lease may act on it.
//
// A Term is the time during which one holder has a lease. The code that renews the lease extends
// the term. The code that sends a write that only the holder may send calls Holds as late as
// possible before sending:
//
//	         Extend           time passes            Extend
//	(new) ────────────▶ holds ────────────▶ lapsed ────────────▶ holds
//	                      │                    │
//	                      └─────── End ────────┴───────────────▶ ended, for good
//
// A lapsed term may be extended only if the lease proves that no other client had it meanwhile. For
// other leases, a term is final: it ends when it lapses.
//
// Others take over a lease some time after they last saw it renewed. A term lasts for a shorter
// time, counted from the moment at which the renewal was sent, so that writes sent within the term
// arrive before any other holder acts.
//
// On Linux, time is the time since the machine started, including the time for which it was
// suspended: a process that was stopped, or suspended with its machine, sees that its term has
// lapsed when it continues.
package fence
