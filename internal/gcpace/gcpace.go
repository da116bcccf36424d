package gcpace

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Pace sets how much garbage there may be before a collection.
type Pace struct {
	// Percent is the minimum, as a percentage of the live heap.
	Percent int
	// Slack is the minimum in bytes.
	Slack uint64
}

// percent returns the GC percentage for a live heap of this many bytes.
func (p Pace) percent(live uint64) int {
	if live == 0 {
		return p.Percent
	}
	return max(p.Percent, int(math.Round(min(100*float64(p.Slack)/float64(live), percentMax))))
}

// percentMax is enough for any slack on a heap that is worth collecting.
const percentMax = 1000

// Start applies the pace to the program. stop ends this, and leaves the current GC percentage in
// place.
func (p Pace) Start() (stop func()) {
	s := &state{pace: p}
	s.adjust()
	s.again()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stopped = true
	}
}

// state follows the collections.
type state struct {
	pace    Pace
	mu      sync.Mutex
	stopped bool
	now     int // percent
}

// sentinel is an object that is garbage at once, so that its cleanup runs after the next
// collection.
type sentinel struct{ _ [16]byte }

// again schedules adjust after the next collection.
func (s *state) again() {
	runtime.AddCleanup(new(sentinel), (*state).collected, s)
}

func (s *state) collected() {
	if s.adjust() {
		s.again()
	}
}

// adjust sets the GC percentage according to the live heap. Small changes are skipped, because
// setting it pauses the program. adjust returns false if the pace is stopped.
func (s *state) adjust() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	percent := s.pace.percent(live[0].Value.Uint64())
	if percent*10 < s.now*9 || percent*10 > s.now*11 || s.now == 0 {
		debug.SetGCPercent(percent)
		s.now = percent
	}
	return true
}
