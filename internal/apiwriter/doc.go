// Package apiwriter is the only write path to the API server: every mutation of the cluster goes
// through it.
//
// Callers hand over a write and continue. The writer decides how many requests are in flight at a
// time, in which order writes are sent, and what happens when a request fails.
//
//	Create Bind Patch Delete ──────────────┐
//	Status ──▶ one entry per object ───────┤ (latest wins, at most one in flight, minimum interval)
//	Event ───▶ one entry per equal event ──┤ (counted; dropped when too many are queued)
//	                                       ▼
//	              queue: class ▶ owner ▶ FIFO                          (queue.go)
//	                                       │ while in flight < limit ◀──── limiter: throughput, 429s, timeouts (limiter.go)
//	                                       ▼
//	                  request ──▶ API server ──▶ classify              (request.go, retry.go)
//	                     ▲                         │
//	                     └── backoff ◀─ not final ─┴── final ──▶ done
//
// # Invariants
//
//   - done is called exactly once for each call, whatever happens to the server. After the writer
//     has stopped, done gets ErrStopped.
//   - A write with a fence is sent only within the lease term under which the write was made
//     (fence.go).
//   - A status write replaces only the resource version that the status was computed from, or the
//     version that the writer's own last write produced. Only a status without a resource version
//     replaces any version, of an object with the same UID.
//   - A write takes effect at most once, however many responses are lost: names are deterministic,
//     AlreadyExists is resolved by the owner's UID, and updates and deletes carry the UID of their
//     object.
//   - An outage of the server loses nothing except events: writes stay queued, and one request at a
//     time probes whether the server is back.
//   - Writes that the server answers with an error of its own (5xx, a 429 from admission, a
//     timeout) do not delay other writes. Writes with the same resource, verb and namespace wait
//     while one at a time probes. A whole resource, or everything, waits only if several
//     namespaces, or several resources, fail and no other write is answered (breakers.go). Such
//     errors do not change the limit of requests in flight, except timeouts that may concern the
//     whole server.
//   - No goroutine waits for a write's turn: there are as many workers as requests in flight. A
//     worker puts its request on the wire itself (package http2client). Requests that package
//     http2client does not carry (long bodies, servers without HTTP/2 or behind a proxy) go through
//     Go's HTTP client.
package apiwriter
