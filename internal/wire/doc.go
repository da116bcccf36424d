// Package wire makes short requests of one server over HTTP/2, many at a time.
//
//	Do ──▶ turn among connections ──▶ frames ──▶ one buffer ──▶ whoever finds nobody writing writes it
//	 ◀── the answer's frames, put together ◀── one goroutine per connection
//
// Go's own client hands each request from goroutine to goroutine: one is made for it, it writes headers and body each with a
// record of TLS and a system call, and the answer goes through a pipe. For a program that makes short requests by the hundreds
// a second that is most of what a request costs. Here the caller's goroutine puts the request into the connection's buffer,
// what several callers have put there meanwhile goes out with one call, and the caller is woken once, when all of the answer
// is there.
//
// # What it leaves to others
//
// Bodies longer than BodyMax and servers without HTTP/2 (ErrTooLong, ErrNoHTTP2): such requests are for Go's client. Redirects,
// cookies, proxies, streams, compressed answers: there are none of these here.
//
// # What it sees to
//
//   - A request that the server has not looked at, because it was closing the connection, is made again on another one.
//     Any other that is without an answer fails, and may have taken effect.
//   - A connection on which nothing comes is asked for a sign of life; without one, its requests fail.
//   - A connection is replaced after a while (ageMax), so that certificates that are replaced, and servers that are added,
//     are found.
//   - What has a Term is sent only while that holds, which is asked again before each system call that sends: after a pause of
//     the process nothing of it is sent that was in a buffer. The connection is given up then (ErrLapsed).
package wire
