package managertest

import (
	"net/http"
	"sync"
	"testing"

	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
)

// refusals are what the server refuses to the managers in this process.
var refusals struct {
	mu   sync.Mutex
	all  map[*refusal]bool
	held map[*hold]bool
	lost map[*loss]bool
}

type loss struct {
	match func(*http.Request) bool
	times int
}

type hold struct {
	match           func(*http.Request) bool
	before          bool // the server has them
	once            sync.Once
	there, released chan struct{}
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

// Hold has answers to requests of this process's managers that match kept back, as a slow network does: what was asked for has
// happened, and the manager does not know it. there is closed when there is one; release lets them all go.
func Hold(t testing.TB, match func(*http.Request) bool) (there <-chan struct{}, release func()) {
	return newHold(t, &hold{match: match})
}

// Delay is Hold for requests that are kept back before the server has them: they come late.
func Delay(t testing.TB, match func(*http.Request) bool) (there <-chan struct{}, release func()) {
	return newHold(t, &hold{match: match, before: true})
}

func newHold(t testing.TB, h *hold) (there <-chan struct{}, release func()) {
	h.there, h.released = make(chan struct{}), make(chan struct{})
	refusals.mu.Lock()
	defer refusals.mu.Unlock()
	if refusals.held == nil {
		refusals.held = map[*hold]bool{}
	}
	refusals.held[h] = true
	release = sync.OnceFunc(func() {
		refusals.mu.Lock()
		defer refusals.mu.Unlock()
		delete(refusals.held, h)
		close(h.released)
	})
	t.Cleanup(release)
	return h.there, release
}

// Lose has the answer to the first request of this process's managers that matches lost: what was asked for has happened. times is
// how many were.
func Lose(t testing.TB, match func(*http.Request) bool) (times func() int) {
	l := &loss{match: match}
	refusals.mu.Lock()
	defer refusals.mu.Unlock()
	if refusals.lost == nil {
		refusals.lost = map[*loss]bool{}
	}
	refusals.lost[l] = true
	t.Cleanup(func() {
		refusals.mu.Lock()
		defer refusals.mu.Unlock()
		delete(refusals.lost, l)
	})
	return func() int {
		refusals.mu.Lock()
		defer refusals.mu.Unlock()
		return l.times
	}
}

// Decide is what a proxy between a manager and the server does for Refuse and Hold: the managers of Run have one.
func Decide(r *faultproxy.Request) (f faultproxy.Fault) {
	if refused(r.Request) {
		f.Answer = http.StatusForbidden
		return f
	}
	refusals.mu.Lock()
	defer refusals.mu.Unlock()
	for l := range refusals.lost {
		if l.times == 0 && l.match(r.Request) {
			l.times++
			f.Lose, f.Worked = faultproxy.ResetStream, true
			return f
		}
	}
	for h := range refusals.held {
		if h.match(r.Request) {
			wait := func() {
				h.once.Do(func() { close(h.there) })
				select {
				case <-h.released:
				case <-r.Context().Done():
				}
			}
			if h.before {
				f.Before = wait
			} else {
				f.Done = wait
			}
		}
	}
	return f
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
