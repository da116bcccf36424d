// Package http2client makes many short concurrent requests to one server over HTTP/2.
//
//	Do ──▶ next connection ──▶ frames ──▶ one buffer ──▶ written by one of the callers
//	 ◀── the answer's frames, assembled ◀── one goroutine per connection
//
// Go's HTTP client hands each request from goroutine to goroutine: it starts one for the request,
// writes headers and body each with a TLS record and a system call, and passes the answer through a
// pipe. For a program that makes hundreds of short requests per second, this is most of the cost of
// a request. In this package the caller's goroutine puts the request into the connection's buffer,
// the requests of several callers go out with one system call, and the caller is woken once, when
// the whole answer has arrived.
//
// # Out of scope
//
// Bodies longer than BodyMax (ErrTooLong) and servers without HTTP/2 (ErrNoHTTP2) need Go's HTTP
// client. Redirects, cookies, proxies, streams and compressed answers are not supported.
//
// # Guarantees
//
//   - A request that the server has not processed, because it was closing the connection, is made
//     again on another connection. Any other request without an answer fails, and may have taken
//     effect.
//   - A connection on which nothing arrives is sent a ping; if there is no reply, its requests
//     fail.
//   - A connection is replaced after ageMax, so that the client notices replaced certificates and
//     added servers.
//   - A request with a Term is sent only while the term holds. The term is checked before each
//     system call that sends: if it lapses while the process is paused, nothing of the request that
//     is still in a buffer is sent, and the connection is closed (ErrLapsed).
package http2client
