package managertest

import (
	"net/http"
	"sync"
	"testing"

	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
)

// refusals holds the faults that tests inject into the requests of the managers in this process.
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
	before          bool // hold requests before the server has them
	once            sync.Once
	there, released chan struct{}
}

type refusal struct {
	match func(*http.Request) bool
	times int
}

// Refuse answers matching requests of this process's managers with 403, like a policy that forbids
// them, until the test ends or release is called. times returns the number of such requests.
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

// Hold delays the answers to matching requests of this process's managers, like a slow network: the
// server has carried the request out, and the manager does not know. there is closed when the first
// answer is delayed; release ends all delays.
func Hold(t testing.TB, match func(*http.Request) bool) (there <-chan struct{}, release func()) {
	return newHold(t, &hold{match: match})
}

// Delay is like Hold, but delays the requests on their way to the server.
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

// Lose loses the answer to the first matching request of this process's managers: the server has
// carried the request out. times returns the number of lost answers, 0 or 1.
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

// Decide returns the faults of Refuse, Hold, Delay and Lose for a request. The proxy between a
// server and a manager of Run calls it.
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
