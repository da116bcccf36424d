package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// slots bounds how many statuses that can wait are at the writer: one that has not been handed over yet takes in what
// happens meanwhile, or turns out not to be needed. The busier the server is, the fewer there are: of thousands of workflows
// that were submitted at once, most are told about when they end, and the server's time goes to their pods.
type slots struct {
	mu      sync.Mutex
	most    int
	lag     func() time.Duration // of writes that cannot wait
	wake    func(types.NamespacedName)
	holds   map[types.NamespacedName]bool
	waiting map[types.NamespacedName]bool
	line    []types.NamespacedName // may have keys that do not wait any more
	// seen hold a slot since before the last sweep, and stuck had one for so long that it was given to others: the server does not
	// carry out their writes, which is not to hold up those of others.
	seen, stuck map[types.NamespacedName]bool
}

const (
	// lagQuick is a lag up to which all slots are there; at twice that there is a quarter of them, at three times a ninth: each
	// write takes longer, and what is left for them of the server's time is to shrink.
	lagQuick = 50 * time.Millisecond
	// slotsLeast are there however busy the server is, so that workflows that run for long are shown too.
	slotsLeast = 2
)

func (s *slots) init(most int, lag func() time.Duration, wake func(types.NamespacedName)) {
	s.most, s.lag, s.wake = most, lag, wake
	s.holds, s.waiting = map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	s.seen, s.stuck = map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
}

// free says whether there is a slot. The caller holds mu.
func (s *slots) free() bool {
	n := s.most
	if lag := s.lag(); lag > lagQuick {
		share := float64(lagQuick) / float64(lag)
		n = max(slotsLeast, int(float64(n)*share*share))
	}
	return len(s.holds) < n
}

// enter says whether the record may hand over its status. If not, its key is woken when it may.
func (s *slots) enter(r *record) bool {
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

// leave gives the record's slot, if it has one, to those next in line. While any wait there are some that have slots, so
// none waits for ever.
func (s *slots) leave(r *record) {
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

// sweep takes the slots of those that had them at the last sweep already: their writes may wait for as long as the server does not
// carry them out.
func (s *slots) sweep() {
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

// pass gives the slots that are free to those next in line. The caller holds mu.
func (s *slots) pass() {
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
