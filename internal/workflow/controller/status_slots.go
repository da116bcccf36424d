package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// statusSlots bounds how many non-urgent status writes are in flight. A status that has no slot yet
// absorbs later changes, or turns out to be unnecessary. The number of statusSlots falls as the server's
// latency rises: when thousands of workflows are submitted at once, the status of most of them is
// first written when they end, and the server's time goes to their pods.
type statusSlots struct {
	mu      sync.Mutex
	most    int
	lag     func() time.Duration // latency of writes that cannot wait
	wake    func(types.NamespacedName)
	holds   map[types.NamespacedName]bool
	waiting map[types.NamespacedName]bool
	line    []types.NamespacedName // in arrival order; may hold keys that no longer wait
	// seen are the keys that held a slot at the last sweep. stuck are the keys that lost their slot
	// because they held it too long: the server does not carry out their writes, which must not
	// delay other keys.
	seen, stuck map[types.NamespacedName]bool
}

const (
	// lagQuick is the latency up to which all slots are available. At twice this latency a quarter
	// of them is available, at three times a ninth: each write takes longer, and these writes are
	// to take a smaller share of the server's time.
	lagQuick = 50 * time.Millisecond
	// slotsLeast is the number of slots available however busy the server is, so that long-running
	// workflows get a status too.
	slotsLeast = 2
)

func (s *statusSlots) init(most int, lag func() time.Duration, wake func(types.NamespacedName)) {
	s.most, s.lag, s.wake = most, lag, wake
	s.holds, s.waiting = map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	s.seen, s.stuck = map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
}

// free reports whether a slot is available. The caller holds mu.
func (s *statusSlots) free() bool {
	n := s.most
	if lag := s.lag(); lag > lagQuick {
		share := float64(lagQuick) / float64(lag)
		n = max(slotsLeast, int(float64(n)*share*share))
	}
	return len(s.holds) < n
}

// enter reports whether the record may write its status now. If not, its key is woken when a slot
// becomes available.
func (s *statusSlots) enter(r *record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.holds[r.key], s.stuck[r.key]:
		return true
	case len(s.waiting) == 0 && s.free():
		s.holds[r.key] = true
		return true
	case !s.waiting[r.key]:
		s.waiting[r.key] = true
		s.line = append(s.line, r.key)
	}
	return false
}

// leave releases the record's slot, if it has one, and passes free slots to the next keys in line.
// Keys wait only while other keys hold slots, so no key waits for ever.
func (s *statusSlots) leave(r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, r.key)
	delete(s.seen, r.key)
	delete(s.stuck, r.key)
	if !s.holds[r.key] {
		return
	}
	delete(s.holds, r.key)
	s.pass()
}

// sweep takes the slots from keys that already held them at the previous sweep: their writes may be
// pending for as long as the server does not carry them out.
func (s *statusSlots) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.holds {
		if s.seen[key] {
			delete(s.holds, key)
			delete(s.seen, key)
			s.stuck[key] = true
			continue
		}
		s.seen[key] = true
	}
	s.pass()
}

// pass gives free slots to the next keys in line. The caller holds mu.
func (s *statusSlots) pass() {
	for len(s.line) > 0 && s.free() {
		next := s.line[0]
		s.line = s.line[1:]
		if s.waiting[next] {
			delete(s.waiting, next)
			s.holds[next] = true
			s.wake(next)
		}
	}
	if len(s.line) == 0 {
		s.line = nil
	}
}
