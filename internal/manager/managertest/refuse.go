package managertest

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"lockstep.dev/lockstep/internal/manager"
)

// refusals are what the server refuses to the managers in this process.
var refusals struct {
	mu  sync.Mutex
	all map[*refusal]bool
}

type refusal struct {
	match func(*http.Request) bool
	times int
}

// Refuse has requests of this process's managers that match answered as a policy does that forbids them, from now on until
// the test ends or release is called. times is how many there were.
func Refuse(t testing.TB, match func(*http.Request) bool) (times func() int, release func()) {
	r := &refusal{match: match}
	refusals.mu.Lock()
	defer refusals.mu.Unlock()
	if refusals.all == nil {
		refusals.all = map[*refusal]bool{}
	}
	refusals.all[r] = true
	release = func() {
		refusals.mu.Lock()
		defer refusals.mu.Unlock()
		delete(refusals.all, r)
	}
	t.Cleanup(release)
	return func() int {
		refusals.mu.Lock()
		defer refusals.mu.Unlock()
		return r.times
	}, release
}

func withRefusals(cfg *manager.Config) {
	cfg.REST.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if !refused(req) {
				return next.RoundTrip(req)
			}
			if req.Body != nil {
				_ = req.Body.Close()
			}
			return &http.Response{
				Status: "403 Forbidden", StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
				Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,` +
					`"message":"a policy of the test forbids this","details":{"name":"test"}}`)),
			}, nil
		})
	})
}

func refused(req *http.Request) bool {
	refusals.mu.Lock()
	defer refusals.mu.Unlock()
	any := false
	for r := range refusals.all {
		if r.match(req) {
			r.times++
			any = true
		}
	}
	return any
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
