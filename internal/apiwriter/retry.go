package apiwriter

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/http2client"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// verdict is the meaning of an attempt's error for the write and for the rate of other writes.
type verdict int

const (
	succeeded  verdict = iota
	refused            // final: the same request will be refused again
	retryLater         // a temporary error of this write: retry after a backoff of its own
	overloaded         // the server asks for fewer requests (429)
	timedOut           // no answer in time
	// unavailable: no server, a server that starts or stops, or a backend of this write is
	// unavailable.
	unavailable
	// termLapsed: the term of this write, or of one on the same connection, must be extended first.
	termLapsed
)

// outcome is the classified result of one attempt.
type outcome struct {
	verdict
	// applied reports whether the server may have carried out the request despite the error.
	applied bool
	// partial reports whether the server responded, or took too long, so that other writes may
	// succeed: see breakers.
	partial bool
	// after is the server's Retry-After, or zero.
	after time.Duration
}

// classify returns the outcome of one attempt that ended with err. recovering means that the server
// was away recently: while it starts, authentication, authorization and the list of resources are
// incomplete, and it refuses requests that it will accept a moment later.
func classify(err error, recovering bool) outcome {
	if err == nil {
		return outcome{verdict: succeeded, applied: true}
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return classifyStatus(err, status.Status(), recovering)
	}
	switch {
	case errors.Is(err, errLocal), errors.Is(err, ErrFenced), errors.Is(err, errSeen):
		return outcome{verdict: refused}
	case errors.Is(err, errTermLapsed):
		return outcome{verdict: termLapsed}
	// The request may have been sent before another write on its connection found its term over.
	case errors.Is(err, http2client.ErrLapsed):
		return outcome{verdict: termLapsed, applied: true}
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		return outcome{verdict: timedOut, applied: true, partial: true}
	case errors.Is(err, syscall.ECONNREFUSED):
		return outcome{verdict: unavailable}
	}
	// All other errors come from the transport: connections reset or closed in the middle of a
	// response, GOAWAY, DNS, TLS.
	return outcome{verdict: unavailable, applied: true}
}

func classifyStatus(err error, s metav1.Status, recovering bool) outcome {
	var after time.Duration
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		after = time.Duration(seconds) * time.Second
	}
	switch s.Code {
	case http.StatusTooManyRequests:
		// The server's own limits respond in plain text, before the server routes the request. A
		// Status comes from the code that handles this resource: admission, storage.
		return outcome{verdict: overloaded, after: after, partial: !apierrors.IsUnexpectedServerError(err)}
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return outcome{verdict: timedOut, applied: true, partial: true, after: after}
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		return outcome{verdict: unavailable, applied: true, partial: true, after: after}
	case http.StatusUnauthorized:
		if recovering {
			return outcome{verdict: retryLater}
		}
	case http.StatusForbidden:
		// Admission refuses requests with this message until its caches are filled.
		if recovering || strings.Contains(s.Message, "not yet ready to handle request") {
			return outcome{verdict: retryLater}
		}
	case http.StatusNotFound:
		// A NotFound without details means that the whole resource is missing, not the object.
		if recovering && (s.Details == nil || s.Details.Name == "") {
			return outcome{verdict: retryLater}
		}
	}
	if s.Code >= 500 {
		return outcome{verdict: retryLater, applied: true, partial: !errors.As(err, &transientError{}), after: after}
	}
	return outcome{verdict: refused}
}

// deniedForNow reports whether err says that the manager's own rights do not allow x, and may be
// due to a restart of the server. If no write failed during its absence, nothing else shows that
// the server restarted. Refusals by admission, and of impersonated users, are final at once.
func (x *write) deniedForNow(err error, now time.Time) bool {
	if x.as != nil || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "`) ||
		!strings.Contains(err.Error(), `" cannot `) {
		return false
	}
	if x.forbidden.IsZero() {
		x.forbidden = now
	}
	return now.Sub(x.forbidden) < kubeclient.TransientMax(err)
}

// transientError is a temporary error of one write, which says nothing about other writes.
type transientError struct{ *apierrors.StatusError }

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// errLocal marks errors of this process that a retry cannot cure: an object that cannot be encoded
// or decoded, or an unknown type.
var errLocal = errors.New("does not fit the types known here")

const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 10 * time.Second
)

// backoff returns the time until attempt number attempts+1. It doubles with each attempt, has
// jitter of one half so that writes that failed together are not retried together, and is at least
// the server's Retry-After.
func backoff(attempts int, after time.Duration) time.Duration {
	d := backoffMax
	if attempts < 8 {
		d = min(backoffMin<<attempts, backoffMax)
	}
	d = backoffJitter(d)
	if after > 0 {
		after = min(after, retryAfterMax)
		d = max(d, after+rand.N(after/4+1))
	}
	return d
}

func backoffJitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
