// Package faultproxy is an HTTP/2 proxy between a client and an API server that injects faults. In
// tests it stands in for a bad network and an overloaded server.
//
//	client ──TLS, HTTP/2──▶ Proxy ──TLS, HTTP/2──▶ API server
//	                          │
//	                          Decide(Request) ──▶ Fault
//
// Faults happen on the wire, below whatever the client consists of. A wrapper of an
// http.RoundTripper would be above internal/http2client, which makes a manager's writes, and would
// never see them.
//
// # What it can do to a request
//
//   - lose it before it reaches the server, or lose the answer after the server has done the work:
//     by a reset of the stream, by a reset of the connection, or by an answer that ends in the
//     middle of its body
//   - answer in the server's place, before or after the server has done the work
//   - delay it, or hold it until a function returns: tests kill the client there
//   - end a watch, freeze it for a while, or answer it with an expired version
//
// Dark makes the proxy accept no connections for a while; Cut resets the existing connections.
//
// The proxy presents the API server's own certificate and forwards credentials, so a client only
// needs another address: see Proxy.REST and Proxy.WriteKubeconfig. Writes returns every write that
// reached the server and how it was answered, as a witness besides the audit log.
package faultproxy
