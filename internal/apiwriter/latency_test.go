package apiwriter

import (
	"testing"
	"time"
)

func TestLagFollowsWritesAndFades(t *testing.T) {
	now := time.Unix(0, 0)
	var l latency
	if got := l.now(now); got != 0 {
		t.Fatalf("%v before anything was written", got)
	}
	for range 200 {
		now = now.Add(5 * time.Millisecond)
		l.ended(now, 2*time.Second)
	}
	if got := l.now(now); got < 1.8 || got > 2 {
		t.Errorf("%v after many writes that took 2 s", got)
	}
	if got := l.now(now.Add(3 * time.Second)); got < 0.2 || got > 0.25 {
		t.Errorf("%v three seconds later, want an eighth", got)
	}
	for range 100 {
		now = now.Add(5 * time.Millisecond)
		l.ended(now, 10*time.Millisecond)
	}
	if got := l.now(now); got > 0.05 {
		t.Errorf("%v after many quick writes", got)
	}
}
