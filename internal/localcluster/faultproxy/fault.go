package faultproxy

import (
	"fmt"
	"net/http"
	"time"
)

// Fault describes what happens to a request. The zero value is no fault.
type Fault struct {
	// Delay is the delay before the request is forwarded to the server.
	Delay time.Duration
	// Lose is the way in which the answer is lost; Answer is an HTTP status to answer with in place
	// of the server's answer.
	Lose   Loss
	Answer int
	// RetryAfter is the Retry-After header sent with Answer.
	RetryAfter string
	// Worked forwards the request to the server before the answer is lost or replaced. Otherwise
	// the server never gets the request.
	Worked bool
	// GoAway makes the connection accept no requests after this one.
	GoAway bool
	// Watch describes the fault of a watch that the server has begun.
	Watch WatchFault
	// Before is called before the server gets the request, Done when the server has done the work
	// and the client has no answer yet, Answered when the whole answer has been written to the
	// connection. Each holds the request until it returns.
	Before, Done, Answered func()
}

// Loss is a way to lose an answer.
type Loss int

// The ways to lose an answer.
const (
	NoLoss Loss = iota
	// ResetStream resets only the request's stream (RST_STREAM).
	ResetStream
	// ResetConnection resets the connection and everything in flight on it (a TCP reset).
	ResetConnection
	// HalfBody sends half of the answer and resets the stream. It implies Worked.
	HalfBody
)

// WatchFault describes what happens to a watch. The zero value is no fault.
type WatchFault struct {
	// FreezeAfter is the time from the beginning of the watch until events from the server are held
	// back, and FreezeFor is how long they are.
	FreezeAfter, FreezeFor time.Duration
	// EndAfter is the time from the beginning of the watch until it ends: in the middle of an event
	// if Torn is true, else in order. If it is 0, the server ends the watch.
	EndAfter time.Duration
	Torn     bool
	// Expired answers the watch with an error event of code 410 in place of its events.
	Expired bool
}

func (f *Fault) String() string {
	s := ""
	add := func(ok bool, format string, args ...any) {
		if ok {
			s += fmt.Sprintf(" "+format, args...)
		}
	}
	add(f.Delay > 0, "delay")
	add(f.Lose == ResetStream, "reset stream")
	add(f.Lose == ResetConnection, "reset connection")
	add(f.Lose == HalfBody, "half a body")
	add(f.Answer > 0, "answer %d", f.Answer)
	add(f.Worked && f.Lose != HalfBody && (f.Lose != NoLoss || f.Answer > 0), "after the work")
	add(f.GoAway, "go away")
	add(f.Watch.FreezeFor > 0, "freeze")
	add(f.Watch.EndAfter > 0 && !f.Watch.Torn, "end the watch")
	add(f.Watch.EndAfter > 0 && f.Watch.Torn, "tear the watch")
	add(f.Watch.Expired, "expired watch")
	if s == "" {
		return "none"
	}
	return s[1:]
}

// reasons maps status codes to the reasons of the API server's errors.
var reasons = map[int]string{
	http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound",
	http.StatusConflict: "Conflict", http.StatusGone: "Expired", http.StatusTooManyRequests: "TooManyRequests",
	http.StatusInternalServerError: "InternalError", http.StatusServiceUnavailable: "ServiceUnavailable",
	http.StatusGatewayTimeout: "Timeout",
}

// status returns the JSON of an API Status with this code.
func status(code int, retryAfter string) []byte {
	details := ""
	if retryAfter != "" {
		details = fmt.Sprintf(`,"details":{"retryAfterSeconds":%s}`, retryAfter)
	}
	return fmt.Appendf(nil,
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"a fault of the test",`+
			`"reason":%q,"code":%d%s}`, reasons[code], code, details)
}
