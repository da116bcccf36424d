// Package faultproxy is an HTTP/2 proxy between a client and an API server that injects faults: a test's stand-in for a bad
// network and an overloaded server.
//
//	client ──TLS, HTTP/2──▶ Proxy ──TLS, HTTP/2──▶ API server
//	                          │
//	                          Decide(Request) ──▶ Fault
//
// Faults are on the wire, below whatever the client is made of. A wrapper of an http.RoundTripper is above internal/wire, which
// makes the writes of a manager, and never sees them.
//
// # What it can do to a request
//
//   - lose it before the server has it, or lose the answer after the server has done the work: by a reset of the stream, by a
//     reset of the connection, or by an answer that ends in the middle of its body
//   - answer in the server's place, before or after the server has done the work
//   - delay it, or hold it until a function returns: tests kill the client there
//   - end a watch, freeze it for a while, or answer it with an expired version
//
// Dark has the proxy accept nothing for a while; Cut resets the connections that there are.
//
// The proxy presents the API server's own certificate and passes credentials on, so a client needs another address and nothing
// else: see Proxy.REST and Proxy.WriteKubeconfig. Writes returns every write that has reached the server and how it was answered,
// as a witness beside the audit log.
package faultproxy
