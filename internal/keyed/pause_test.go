package keyed_test

import (
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/keyed"
)

func TestPausesGrowWithRefusalsAndAreForgotten(t *testing.T) {
	var p keyed.Pause
	now := time.Unix(1_700_000_000, 0)
	if p.Left(now) > 0 {
		t.Fatal("a pause from the beginning")
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		p.Refused(now)
		if got := p.Left(now); got != want*time.Second {
			t.Fatalf("paused for %s, want %ds", got, want)
		}
		p.Refused(now.Add(want * time.Second / 2)) // of the same burst
		if got := p.Left(now); got != want*time.Second {
			t.Fatalf("another refusal during the pause makes it %s", got)
		}
		now = now.Add(want * time.Second)
		if p.Left(now) > 0 {
			t.Fatal("the pause does not end")
		}
	}
	now = now.Add(time.Hour)
	if p.Refused(now); p.Left(now) != time.Second {
		t.Errorf("a refusal of long ago counts: paused for %s", p.Left(now))
	}
}
