package gcpace

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Pace says how much garbage there may be before it is collected.
type Pace struct {
	// Percent is the least, of what is alive.
	Percent int
	// Slack is the least in bytes.
	Slack uint64
}

// percent is what the runtime is to be told when so many bytes are alive.
func (p Pace) percent(live uint64) int {
	if live == 0 {
		return p.Percent
	}
	return max(p.Percent, int(math.Round(min(100*float64(p.Slack)/float64(live), percentMax))))
}

// percentMax is enough for any slack on a heap that is worth collecting.
const percentMax = 1000

// Start has the program collected at this pace. It returns how to end that, which leaves the pace as it is then.
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

// sentinel is garbage from the start, so that its cleanup runs after the next collection.
type sentinel struct{ _ [16]byte }

// again has the pace adjusted after the next collection.
func (s *state) again() {
	runtime.AddCleanup(new(sentinel), (*state).collected, s)
}

func (s *state) collected() {
	if s.adjust() {
		s.again()
	}
}

// adjust tells the runtime what follows from how much is alive; small changes, which would not pay for the pause that
// telling takes, are left out. It says whether to go on.
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
