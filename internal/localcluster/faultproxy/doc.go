// Package faultproxy is an HTTP/2 proxy between a client and an API server that injects faults. In
// tests it simulates a bad network and an overloaded server.
//
//	client ──TLS, HTTP/2──▶ Proxy ──TLS, HTTP/2──▶ API server
//	                          │
//	                          Decide(Request) ──▶ Fault
//
// Faults happen on the wire, below all code of the client. A wrapper of an http.RoundTripper would
// never see a manager's writes, which internal/http2client makes.
//
// # Faults of a request
//
//   - The request is lost before it reaches the server, or the answer is lost after the server has
//     done the work: by a reset of the stream, by a reset of the connection, or by an answer that
//     ends in the middle of its body.
//   - The proxy answers in the server's place, before or after the server has done the work.
//   - The request is delayed, or held until a function returns: tests kill the client there.
//   - A watch ends, freezes for a while, or is answered as too old.
//
// Dark makes the proxy accept no connections for a while; Cut resets the existing connections.
//
// The proxy presents the API server's own certificate and forwards credentials, so a client only
// needs another address: see Proxy.REST and Proxy.WriteKubeconfig. Writes returns every write that
// the proxy forwarded and the status of its answer, as a second record besides the audit log.
package faultproxy
