package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func TestPercent(t *testing.T) {
	p := Pace{Percent: 40, Slack: 32 << 20}
	for live, want := range map[uint64]int{
		0: 40, 1: percentMax, 16 << 20: 200, 32 << 20: 100, 64 << 20: 50, 80 << 20: 40, 1 << 30: 40,
	} {
		if got := p.percent(live); got != want {
			t.Errorf("%d bytes alive: %d, want %d", live, got, want)
		}
	}
}

var sink []byte

// TestPaceFollowsTheHeap lets the heap grow and checks the GC percentage of the runtime.
func TestPaceFollowsTheHeap(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC is set")
	}
	defer debug.SetGCPercent(100)
	defer Pace{Percent: 50, Slack: 64 << 20}.Start()()
	gogc := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	await := func(why string, done func(uint64) bool) {
		t.Helper()
		for !done(gogc()) { // the test's own time limit ends it
			runtime.GC()
		}
		t.Logf("%s: %d percent", why, gogc())
	}
	await("small", func(p uint64) bool { return p > 300 })
	sink = make([]byte, 256<<20)
	await("large", func(p uint64) bool { return p == 50 })
	sink = nil
	await("small again", func(p uint64) bool { return p > 300 })
}
