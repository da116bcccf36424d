package records

import (
	"errors"
	"testing"
	"time"
)

func TestAWriteIsUnderWayOnce(t *testing.T) {
	var w Writes
	if w.Any() || !w.Start("a") || w.Start("a") || !w.Start("b") || !w.InFlight("a") || !w.Any() {
		t.Error("a write is under way twice, or not at all")
	}
	w.End("a", nil)
	if w.InFlight("a") || !w.InFlight("b") || !w.Start("a") {
		t.Error("a write that ended is under way")
	}
	w.Cancel("a")
	w.End("b", errors.New("refused"))
	if w.Any() || w.Failure("b") != "refused" || w.Failure("a") != "" {
		t.Errorf("failures %q", w.Failures())
	}
}

func TestTheBackoffOfAWriteGrowsUntilItSucceeds(t *testing.T) {
	var w Writes
	now, refused := time.Unix(1000, 0), errors.New("refused")
	if _, waits := w.Waits("a", now); waits {
		t.Error("a write that has not failed waits")
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		w.Start("a")
		if got := w.EndObject("a", refused, now); got != want*time.Second {
			t.Fatalf("backoff %s, want %ds", got, want)
		}
		if left, waits := w.Waits("a", now.Add(want*time.Second-1)); !waits || left != 1 {
			t.Fatalf("retried before %ds: %s left", want, left)
		}
		if left, waits := w.Waits("a", now.Add(want*time.Second)); waits || left > 0 {
			t.Fatalf("not retried after %ds: %s left", want, left)
		}
		now = now.Add(want * time.Second)
	}
	if w.EndObject("a", nil, now) != 0 || w.Failure("a") != "" || !w.Answered.Equal(now) {
		t.Error("a write that succeeded is remembered as failed")
	}
	if got := w.EndObject("a", refused, now); got != time.Second {
		t.Errorf("the backoff after a success is %s", got)
	}
	w.End("tracker", refused)
	if left, waits := w.Waits("tracker", now.Add(time.Hour)); !waits || left != 0 {
		t.Errorf("a failure without a backoff waits %t, %s", waits, left)
	}
	w.Forget("a")
	if got := w.Failures(); len(got) != 1 {
		t.Errorf("failures %q", got)
	}
	if w.Forget(); len(w.Failures()) != 0 {
		t.Error("failures are not forgotten")
	}
}
