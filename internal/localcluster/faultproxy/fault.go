package faultproxy

import (
	"fmt"
	"net/http"
	"time"
)

// Fault is what happens to a request. The zero value is nothing.
type Fault struct {
	// Delay is before the server gets the request.
	Delay time.Duration
	// Lose is how the answer is lost; Answer, an HTTP status, is given in the place of the server's.
	Lose   Loss
	Answer int
	// RetryAfter is the header of that name, with Answer.
	RetryAfter string
	// Worked has the server do the work before the answer is lost or replaced. Otherwise it never has the request.
	Worked bool
	// GoAway has the connection take no more requests after this one.
	GoAway bool
	// Watch is what happens to a watch that the server has begun.
	Watch WatchFault
	// Before runs before the server gets the request, Done when it has done the work and the client has no answer yet, Answered
	// when the whole answer has been handed to the connection. They hold the request until they return.
	Before, Done, Answered func()
}

// Loss is a way to lose an answer.
type Loss int

// The ways to lose an answer.
const (
	NoLoss Loss = iota
	// ResetStream ends the request alone (RST_STREAM).
	ResetStream
	// ResetConnection ends everything that is under way on its connection (a TCP reset).
	ResetConnection
	// HalfBody sends half of the answer, and resets the stream. It implies Worked.
	HalfBody
)

// WatchFault is what happens to a watch. The zero value is nothing.
type WatchFault struct {
	// Freeze holds back what the server sends for FreezeFor, beginning FreezeAfter the start.
	FreezeAfter, FreezeFor time.Duration
	// EndAfter is when the watch ends: in the middle of an event if Torn, else in order. 0: when the server ends it.
	EndAfter time.Duration
	Torn     bool
	// Expired answers a watch with the error event 410 in the place of its events.
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

// reasons are what the API server's errors say beside their code.
var reasons = map[int]string{
	http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound",
	http.StatusConflict: "Conflict", http.StatusGone: "Expired", http.StatusTooManyRequests: "TooManyRequests",
	http.StatusInternalServerError: "InternalError", http.StatusServiceUnavailable: "ServiceUnavailable", http.StatusGatewayTimeout: "Timeout",
}

// status is the API's Status of an answer with this code.
func status(code int, retryAfter string) []byte {
	details := ""
	if retryAfter != "" {
		details = fmt.Sprintf(`,"details":{"retryAfterSeconds":%s}`, retryAfter)
	}
	return fmt.Appendf(nil, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"a fault of the test",`+
		`"reason":%q,"code":%d%s}`, reasons[code], code, details)
}
