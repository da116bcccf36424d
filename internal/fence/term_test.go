package fence

import (
	"testing"
	"time"
)

type clock struct{ at time.Time }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) advance(d time.Duration) { c.at = c.at.Add(d) }
func (c *clock) in(d time.Duration) time.Time {
	return c.at.Add(d)
}

func TestTerm(t *testing.T) {
	for name, test := range map[string]struct {
		final        bool
		do           func(*Term, *clock)
		holds, ended bool
	}{
		"does not hold before the lease is renewed": {do: func(*Term, *clock) {}},
		"holds once it is":                          {do: func(t *Term, c *clock) { t.Extend(c.in(10 * time.Second)) }, holds: true},
		"holds to the last moment": {do: func(t *Term, c *clock) {
			t.Extend(c.in(10 * time.Second))
			c.advance(10*time.Second - 1)
		}, holds: true},
		"lapses at the end": {do: func(t *Term, c *clock) {
			t.Extend(c.in(10 * time.Second))
			c.advance(10 * time.Second)
		}},
		"is not made shorter by a renewal whose answer comes late": {do: func(t *Term, c *clock) {
			t.Extend(c.in(10 * time.Second))
			t.Extend(c.in(5 * time.Second))
			c.advance(7 * time.Second)
		}, holds: true},
		"holds again when the lease shows that nobody had it": {do: func(t *Term, c *clock) {
			t.Extend(c.in(10 * time.Second))
			c.advance(time.Minute)
			t.Extend(c.in(10 * time.Second))
		}, holds: true},
		"ends by a lapse when it is final, also when nobody asked meanwhile": {final: true, do: func(t *Term, c *clock) {
			t.Extend(c.in(10 * time.Second))
			c.advance(time.Minute)
			t.Extend(c.in(10 * time.Second))
		}, ended: true},
		"does not hold by a renewal that was sent too long ago": {final: true, do: func(t *Term, c *clock) {
			t.Extend(c.in(-time.Second))
		}, ended: true},
		"ends for good": {do: func(t *Term, c *clock) {
			t.Extend(c.in(10 * time.Second))
			t.End()
			t.Extend(c.in(20 * time.Second))
		}, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{at: time.Unix(1000, 0)}
			term := NewTerm(test.final, c.now)
			test.do(term, c)
			if got := term.Holds(); got != test.holds {
				t.Errorf("Holds is %v", got)
			}
			if got := term.Ended(); got != test.ended {
				t.Errorf("Ended is %v", got)
			}
		})
	}
}

func TestTheClockGoesOn(t *testing.T) {
	if a, b := Now(), Now(); b.Before(a) || a.UnixNano() <= 0 {
		t.Errorf("%v, then %v", a, b)
	}
}
