// Package apiwriter is the one write path: every mutation of the cluster goes through it.
//
// Callers hand over what they want written and go on; the writer decides how many requests the API server takes at a
// time, in which order, and what to do when one fails.
//
//	Create Bind Patch Delete ──────────────┐
//	Status ──▶ one entry per object ───────┤ (latest wins, at most one in flight, an interval between two)
//	Event ───▶ one entry per equal event ──┤ (counted; dropped when too many wait)
//	                                       ▼
//	              queue: class ▶ owner ▶ first in, first out           (queue.go)
//	                                       │ while in flight < limit ◀──── limiter: throughput, 429s, timeouts (limiter.go)
//	                                       ▼
//	                  request ──▶ API server ──▶ classify              (request.go, retry.go)
//	                     ▲                         │
//	                     └── later ◀── not final ──┴── final ──▶ done
//
// # Invariants
//
//   - done is called exactly once for each call, whatever happens to the server; after the writer has stopped, with
//     ErrStopped.
//   - A write with a fence is sent only within the term of the lease under which it was made                    (fence.go).
//   - A status is written in the place of the version it was made from, or of our own last write, and of no other.
//   - A write takes effect at most once, however many responses are lost: names are deterministic, AlreadyExists is
//     resolved by the owner's UID, updates and deletes carry the UID of the object they mean.
//   - An outage of the server loses nothing but events: writes wait in their queues, one request at a time asks whether
//     the server is back.
//   - Writes that the server answers with an error of its own (5xx, 429 of admission, time-outs) hold up no others: those of the
//     same resource, verb and namespace wait while one at a time asks; a whole resource, or everything, waits only if several
//     namespaces, or several resources, fail and nothing else is answered (scopes.go). They do not change the pace of others.
//   - No goroutine waits for its turn: there are as many as requests in flight. Each puts its request on the wire itself
//     (package wire); what that does not carry (long ones, servers without HTTP/2 or behind a proxy) goes through Go's client.
package apiwriter
