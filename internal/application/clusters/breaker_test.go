package clusters

import (
	"errors"
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	down := errors.New("refused")
	type step struct {
		err          error
		turned, open bool
		next         time.Duration
	}
	for name, steps := range map[string][]step{
		"a cluster that is there from the first": {{nil, true, false, probeInterval}, {nil, false, false, probeInterval}},
		"one failure is not an outage":           {{nil, true, false, probeInterval}, {down, false, false, retryFirst}, {nil, false, false, probeInterval}},
		"two are, and one success ends it": {
			{nil, true, false, probeInterval}, {down, false, false, retryFirst}, {down, true, true, 2 * retryFirst},
			{down, false, true, 4 * retryFirst}, {nil, true, false, probeInterval},
		},
		"of a cluster that was never there one is enough, and probes get rarer up to a bound": {
			{down, true, true, time.Second}, {down, false, true, 2 * time.Second}, {down, false, true, 4 * time.Second},
			{down, false, true, 8 * time.Second}, {down, false, true, retryMax}, {down, false, true, retryMax},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b breaker
			now := time.Unix(1000, 0)
			for i, s := range steps {
				turned := b.observe(s.err, now)
				next := b.next(now)
				if turned != s.turned || b.open != s.open || next != s.next {
					t.Fatalf("step %d: turned %t, open %t, next %s; want %+v", i, turned, b.open, next, s)
				}
				now = now.Add(next)
			}
		})
	}
}
