package controller_test

import (
	"time"

	"k8s.io/utils/clock"
)

// fastClock is a clock on which time passes rate times as fast as it does.
type fastClock struct {
	clock.RealClock
	begin time.Time
	rate  time.Duration
}

func newFastClock(rate time.Duration) *fastClock {
	return &fastClock{begin: time.Now(), rate: rate}
}

func (c *fastClock) Now() time.Time                  { return c.begin.Add(c.rate * time.Since(c.begin)) }
func (c *fastClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c *fastClock) After(d time.Duration) <-chan time.Time {
	return c.RealClock.After(d / c.rate)
}

func (c *fastClock) NewTimer(d time.Duration) clock.Timer {
	return &fastTimer{c.RealClock.NewTimer(d / c.rate), c.rate}
}

func (c *fastClock) NewTicker(d time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(max(1, d/c.rate))
}

type fastTimer struct {
	clock.Timer
	rate time.Duration
}

func (t *fastTimer) Reset(d time.Duration) bool { return t.Timer.Reset(d / t.rate) }
