package controlloop_test

import (
	"maps"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/controlloop"
)

func TestBackoffsGrowWithFailuresAndAreForgotten(t *testing.T) {
	var b controlloop.Backoff
	now := time.Unix(1_700_000_000, 0)
	if b.Left(now) > 0 {
		t.Fatal("a pause from the beginning")
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		b.Failed(now)
		if got := b.Left(now); got != want*time.Second {
			t.Fatalf("paused for %s, want %ds", got, want)
		}
		b.Failed(now.Add(want * time.Second / 2)) // of the same burst
		if got := b.Left(now); got != want*time.Second {
			t.Fatalf("another refusal during the pause makes it %s", got)
		}
		now = now.Add(want * time.Second)
		if b.Left(now) > 0 {
			t.Fatal("the pause does not end")
		}
	}
	now = now.Add(time.Hour)
	if b.Failed(now); b.Left(now) != time.Second {
		t.Errorf("a refusal of long ago counts: paused for %s", b.Left(now))
	}
}

func TestFailedWritesAreMadeAgainTogetherAfterABackoff(t *testing.T) {
	var r controlloop.FailedWrites[string, int]
	now := time.Unix(1_700_000_000, 0)
	if writes, left := r.Due(now); writes != nil || left != 0 {
		t.Fatalf("without refusals %v are due, others in %s", writes, left)
	}
	r.Add(now, "a", 1)
	r.Add(now, "b", 2)
	r.Add(now.Add(time.Second/2), "a", 3)
	if writes, left := r.Due(now.Add(time.Second / 2)); writes != nil || left != time.Second/2 {
		t.Fatalf("during the pause %v are due, others in %s", writes, left)
	}
	now = now.Add(time.Second)
	if writes, left := r.Due(now); !maps.Equal(writes, map[string]int{"a": 3, "b": 2}) || left != 0 {
		t.Fatalf("after the pause %v are due, others in %s", writes, left)
	}
	if writes, left := r.Due(now); writes != nil || left != 0 {
		t.Fatalf("%v are due twice, others in %s", writes, left)
	}
	r.Add(now, "a", 4)
	if _, left := r.Due(now); left != 2*time.Second {
		t.Errorf("after a second refusal the pause is %s, want one twice as long as the first", left)
	}
}

func TestBackoffsHaveBounds(t *testing.T) {
	b := controlloop.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	now := time.Unix(1_700_000_000, 0)
	for _, want := range []time.Duration{50, 100, 200, 400, 800, 1000, 1000} {
		b.Failed(now)
		if got := b.Left(now); got != want*time.Millisecond {
			t.Fatalf("a delay of %s, want %s", got, want*time.Millisecond)
		}
		now = now.Add(b.Left(now))
	}
	b.Succeeded()
	if b.Left(now) > 0 {
		t.Error("a delay after a success")
	}
	if b.Failed(now); b.Left(now) != b.Min {
		t.Errorf("after a success the first delay is %s", b.Left(now))
	}
	for range 100 {
		now = now.Add(time.Second)
		b.Failed(now)
	}
	if got := b.Left(now); got != b.Max {
		t.Errorf("after many failures the delay is %s", got)
	}
}
