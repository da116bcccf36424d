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

	"lockstep.dev/lockstep/internal/wire"
)

// verdict is what an attempt's error means for the write and for the rate of others.
type verdict int

const (
	succeeded   verdict = iota
	refused             // final: the same request will be refused again
	again               // a passing trouble of this write: try it again after a backoff of its own
	overloaded          // the server asks for fewer requests (429)
	timedOut            // no answer in time
	unavailable         // no server there, or one that is starting or stopping; or what it needs for this write is
	held                // the term of this write, or of one beside it, has to be extended first
)

// outcome is the classified result of one attempt.
type outcome struct {
	verdict
	// applied says that the server may have carried out the request all the same.
	applied bool
	// scoped says that the server answered, or took too long, and that others of its writes may be well: see scopes.
	scoped bool
	// after is the server's Retry-After, or zero.
	after time.Duration
}

// classify says what err, of one attempt to write, means. recovering says that the server has lately been away: while
// it starts, authentication, authorization and the list of resources are incomplete, and it refuses what it will
// accept a moment later.
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
	case errors.Is(err, errHeld):
		return outcome{verdict: held}
	case errors.Is(err, wire.ErrLapsed): // it may have been sent before another one on its connection found its term over
		return outcome{verdict: held, applied: true}
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		return outcome{verdict: timedOut, applied: true, scoped: true}
	case errors.Is(err, syscall.ECONNREFUSED):
		return outcome{verdict: unavailable}
	}
	// What remains comes from the transport: connections reset, closed in the middle of an answer, GOAWAY, DNS, TLS.
	return outcome{verdict: unavailable, applied: true}
}

func classifyStatus(err error, s metav1.Status, recovering bool) outcome {
	var after time.Duration
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		after = time.Duration(seconds) * time.Second
	}
	switch s.Code {
	case http.StatusTooManyRequests:
		// The server's own limits are told in plain text, before it knows what is asked. A Status comes from what handles
		// this resource: admission, storage.
		return outcome{verdict: overloaded, after: after, scoped: !apierrors.IsUnexpectedServerError(err)}
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return outcome{verdict: timedOut, applied: true, scoped: true, after: after}
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		return outcome{verdict: unavailable, applied: true, scoped: true, after: after}
	case http.StatusUnauthorized:
		if recovering {
			return outcome{verdict: again}
		}
	case http.StatusForbidden:
		// Admission says this, as a refusal, until its caches are filled.
		if recovering || strings.Contains(s.Message, "not yet ready to handle request") {
			return outcome{verdict: again}
		}
	case http.StatusNotFound:
		// Without details it is not the object that is missing but the whole resource.
		if recovering && (s.Details == nil || s.Details.Name == "") {
			return outcome{verdict: again}
		}
	}
	if s.Code >= 500 {
		return outcome{verdict: again, applied: true, scoped: !errors.As(err, &passing{}), after: after}
	}
	return outcome{verdict: refused}
}

// forbiddenMax is how long a write is tried that the manager itself is forbidden to make.
const forbiddenMax = recoveringTime

// denied reports whether err says that the manager's own rights do not allow x, and has not done so for long. A server that
// has just started says this of everything until it has read the cluster's roles, and nothing shows that it has been away
// if no write met its absence. What admission refuses, or somebody else's rights do not allow, is believed at once.
func (x *write) denied(err error, now time.Time) bool {
	if x.as != nil || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "`) || !strings.Contains(err.Error(), `" cannot `) {
		return false
	}
	if x.forbidden.IsZero() {
		x.forbidden = now
	}
	return now.Sub(x.forbidden) < forbiddenMax
}

// passing is a passing trouble of one write, which says nothing about others.
type passing struct{ *apierrors.StatusError }

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// errLocal marks errors of this side, which another attempt will not cure: an object that cannot be encoded or decoded,
// an unknown type.
var errLocal = errors.New("does not fit the types known here")

const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 10 * time.Second
)

// backoff is how long to wait before attempt number attempts+1: twice as long each time, with jitter of one half so
// that what failed together does not come back together, and not before the server's Retry-After.
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
