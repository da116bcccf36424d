package apiwriter

import (
	"testing"
	"time"
)

func TestCircuit(t *testing.T) {
	now := time.Unix(1000, 0)
	var c circuit
	if c.recovering(now) || c.answered(now) {
		t.Error("a new circuit is not closed")
	}
	c.trip(0, now)
	if !c.open || !c.recovering(now) || c.until.Sub(now) > outageMin || !c.until.After(now) {
		t.Errorf("a tripped circuit: %+v", c)
	}
	first := c.until
	if c.wait(0, now); c.until != first || c.failed != 1 {
		t.Errorf("a write that was sent before counts as a probe: %+v", c)
	}
	for range 20 {
		now = c.until
		if c.wait(0, now); c.until.Sub(now) > outageMax {
			t.Fatalf("the next probe is after %s", c.until.Sub(now))
		}
	}
	now = c.until
	if c.wait(time.Hour, now); c.until.Sub(now) != retryAfterMax {
		t.Errorf("with a Retry-After of an hour the next probe is after %s", c.until.Sub(now))
	}
	if !c.answered(now) || c.open || c.failed != 0 || c.answered(now) {
		t.Errorf("an answer does not close it once: %+v", c)
	}
	if !c.recovering(now.Add(recoveringTime-1)) || c.recovering(now.Add(recoveringTime)) {
		t.Error("it does not recover for recoveringTime")
	}
}
