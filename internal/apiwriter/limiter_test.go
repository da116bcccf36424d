package apiwriter

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// server is a simulated API server. rate(c) is the number of writes per second it completes with c
// in flight, noise is the standard deviation of the log of its speed, which changes every tenth of
// a second, and far is the network's round trip.
type server struct {
	name  string
	rate  func(c float64, at time.Duration) float64
	noise float64
	every time.Duration // how long the speed stays the same; the default is a tenth of a second
	far   time.Duration
	// writes is the number of writes of the load; the default is 10,000.
	writes int
	// within is how much longer the limiter may take than the best fixed limit, as a ratio. Default
	// 1.1.
	within float64
}

// simulate runs writes writes as fast as the limiter allows, and returns the duration and the final
// limit.
func simulate(s server, l *limiter, writes int, seed uint64) (took time.Duration, limit int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var (
		epoch    = time.Unix(0, 0)
		now      time.Duration
		flights  arrivals
		begun    int
		finished int
		speed    = 1.0
		speedAt  = time.Duration(-1)
		serverAt time.Duration // when the server has finished everything it has accepted so far
	)
	for finished < writes {
		for len(flights) < l.limit(epoch.Add(now)) && begun < writes {
			// The server works through its backlog at the rate that its concurrency gives.
			if q := now / cmp.Or(s.every, 100*time.Millisecond); q != speedAt {
				speedAt, speed = q, math.Exp(s.noise*rnd.NormFloat64())
			}
			begun++
			c := float64(len(flights) + 1)
			service := time.Duration(float64(time.Second) / (s.rate(c, now) * speed) * (0.5 + rnd.Float64()))
			serverAt = max(serverAt, now) + service
			// In a closed loop with c in flight and rate X, a request takes at least c/X: the
			// server's own latency.
			own := time.Duration(c / s.rate(c, now) * float64(time.Second))
			heap.Push(&flights, flight{start: now, end: max(serverAt, now+own/2) + s.far})
		}
		f := heap.Pop(&flights).(flight)
		now = f.end
		finished++
		l.ended(epoch.Add(now), f.end-f.start, len(flights), begun < writes, succeeded)
	}
	return now, l.limit(epoch.Add(now))
}

type flight struct{ start, end time.Duration }
type arrivals []flight

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].end < a[j].end }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)        { *a = append(*a, x.(flight)) }
func (a *arrivals) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

// valley returns the rate of a server that rises to peak at about best in flight and falls beyond
// twice best.
func valley(peak, best, fall float64) func(float64, time.Duration) float64 {
	return func(c float64, _ time.Duration) float64 {
		rise := 1 - math.Exp(-2.5*c/best)
		over := math.Max(0, math.Log2(c/(2*best)))
		return peak * rise / (1 + fall*over)
	}
}

// measured is the curve of a real API server on two cores.
func measured(c float64, _ time.Duration) float64 {
	return between([]point{{1, 285}, {4, 710}, {8, 860}, {32, 860}, {128, 700}, {1024, 520}}, c)
}

type point struct{ c, rate float64 }

// between interpolates the rate at c, linearly in the logarithm of c.
func between(points []point, c float64) float64 {
	for i := 1; i < len(points); i++ {
		if a, b := points[i-1], points[i]; c <= b.c {
			f := math.Log(c/a.c) / math.Log(b.c/a.c)
			return a.rate + f*(b.rate-a.rate)
		}
	}
	return points[len(points)-1].rate
}

// pressed is the same server with nodes that react to each pod: more requests in flight get a
// larger share of it.
func pressed(c float64, _ time.Duration) float64 {
	return between([]point{{1, 198}, {4, 298}, {16, 335}, {64, 458}, {256, 621}, {1024, 721}}, c)
}

var servers = []server{
	{name: "pressed", rate: pressed, noise: 0.05},
	{name: "pressed, noisy", rate: pressed, noise: 0.20},
	{name: "pressed, wavering", rate: pressed, noise: 0.20, every: 700 * time.Millisecond},
	{name: "pressed, bursty", rate: pressed, noise: 0.6, every: 250 * time.Millisecond},
	{name: "pressed, with lulls", rate: pressed, noise: 0.4, every: 2 * time.Second},
	{name: "measured", rate: measured, noise: 0.05},
	{name: "measured, noisy", rate: measured, noise: 0.20},
	{name: "measured, wavering", rate: measured, noise: 0.20, every: 700 * time.Millisecond},
	{name: "ever better, slightly", rate: func(c float64, _ time.Duration) float64 {
		return 600 * (1 - math.Exp(-c/3)) * (1 + 0.05*math.Log2(math.Min(c, 200)/16))
	}, noise: 0.10},
	{name: "best at 2", rate: valley(400, 2, 0.3), noise: 0.05},
	{name: "best at 32", rate: valley(2000, 32, 0.2), noise: 0.05},
	{name: "best at 128", rate: valley(5000, 128, 0.3), noise: 0.05, writes: 30_000},
	{name: "80 ms away", rate: valley(860, 8, 0.1), noise: 0.05, far: 80 * time.Millisecond},
	{name: "slow", rate: valley(60, 4, 0.2), noise: 0.05},
	// The first step up costs a tenth.
	{name: "collapses when pressed", rate: valley(800, 8, 2), noise: 0.05, within: 1.15},
	{name: "half as fast after 4 s", rate: func(c float64, at time.Duration) float64 {
		if at > 4*time.Second {
			return valley(400, 4, 0.5)(c, at)
		}
		return valley(900, 16, 0.3)(c, at)
	}, noise: 0.05},
}

func TestLimiterComesCloseToTheBestFixedLimit(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			writes := s.writes
			if writes == 0 {
				writes = 10_000
			}
			t.Parallel()
			// The mean over several seeds: a single run of a noisy server depends on chance.
			const seeds = 5
			mean := func(fixed int) (sum time.Duration, limits []int) {
				for seed := range uint64(seeds) {
					took, limit := simulate(s, newLimiter(fixed, 0), writes, seed)
					sum += took / seeds
					limits = append(limits, limit)
				}
				return sum, limits
			}
			best, at, table := time.Duration(math.MaxInt64), 0, ""
			for _, fixed := range []int{1, 4, 16, 64, 256, 1024} {
				took, _ := mean(fixed)
				table += fmt.Sprintf(" %d: %.1fs", fixed, took.Seconds())
				if took < best {
					best, at = took, fixed
				}
			}
			took, limits := mean(0)
			t.Logf("adaptive %.1fs = %.3f of the best (%d); fixed%s; ended at %v", took.Seconds(), took.Seconds()/best.Seconds(), at, table, limits)
			within := cmp.Or(s.within, 1.1)
			if s.noise >= 0.2 {
				within = 1.2 // its speed says little about the effect of the limit
			}
			if took.Seconds() > within*best.Seconds() {
				t.Errorf("adaptive took %.1fs, more than %.1f times the %.1fs with %d in flight", took.Seconds(), within, best.Seconds(), at)
			}
		})
	}
}

// TestLimiterStaysUpThroughLulls checks that the limiter keeps a limit that is known to be good
// when the server is slower for a few seconds under any limit. TestLimiterClimbsAgainAfterAPause
// checks that a load whose writes slow each other down does not set the limit of the next load.
func TestLimiterStaysUpThroughLulls(t *testing.T) {
	for _, s := range []server{
		{name: "lulls", rate: pressed, noise: 0.4, every: 2 * time.Second},
		{name: "bursts", rate: pressed, noise: 0.6, every: 250 * time.Millisecond},
		{name: "wavering", rate: pressed, noise: 0.3, every: 700 * time.Millisecond},
	} {
		const seeds = 40
		fell := 0
		for seed := range uint64(seeds) {
			l := newLimiter(0, 0)
			l.base, l.now, l.grown, l.busy, l.rtt = limitMax, limitMax, limitMax, time.Unix(0, 0), 1.4
			l.endRamp(l.busy)
			if _, limit := simulate(s, l, 20_000, seed); limit < limitMax/2 {
				fell++
			}
		}
		if fell > seeds/20 {
			t.Errorf("%s: the limit fell in %d of %d runs", s.name, fell, seeds)
		}
	}
}

func TestLimiterClimbsAgainAfterAPause(t *testing.T) {
	l := newLimiter(0, 0)
	now := time.Unix(0, 0)
	for i := range 2000 {
		now = now.Add(time.Duration(l.limit(now)) * 100 * time.Microsecond)
		l.ended(now, 50*time.Millisecond, l.limit(now)-1, i < 1999, succeeded)
	}
	if low := l.limit(now); low > limitStart {
		t.Fatalf("%d in flight after a load that is the slower the more are", low)
	}
	now = now.Add(time.Minute)
	writes := 0
	for ; l.limit(now) < limitMax && writes < 100_000; writes++ {
		// Twice as many in flight, twice as many per second.
		now = now.Add(time.Second / time.Duration(20*l.limit(now)))
		l.ended(now, 50*time.Millisecond, l.limit(now)-1, true, succeeded)
	}
	if writes > 4_000 {
		t.Errorf("%d in flight after %d writes, though each step up brings twice as much", l.limit(now), writes)
	}
}

// TestLimiterStaysThroughASlowStart checks that the limiter keeps what it has learned when, after a
// pause, the server is slow at first and gets faster under any limit.
func TestLimiterStaysThroughASlowStart(t *testing.T) {
	l := newLimiter(0, 0)
	l.base, l.now, l.grown, l.busy = limitMax, limitMax, limitMax, time.Unix(0, 0)
	l.endRamp(l.busy)
	learned := l.limit(l.busy)
	start := time.Unix(3600, 0)
	for at, lowest := time.Duration(0), learned; at < 5*time.Second; {
		rate := math.Min(700, 100+200*at.Seconds()) // writes per second, with any number in flight
		at += time.Duration(float64(time.Second) / rate)
		l.ended(start.Add(at), 500*time.Millisecond, l.limit(start.Add(at))-1, true, succeeded)
		if now := l.limit(start.Add(at)); now < lowest {
			lowest = now
			if lowest < learned/2 {
				t.Fatalf("after %v at most %d are in flight, %d before the pause", at, lowest, learned)
			}
		}
	}
}

// TestLimiterCutsOnOverload uses a server that refuses all requests above a limit of its own.
func TestLimiterCutsOnOverload(t *testing.T) {
	l := newLimiter(0, 0)
	now := time.Unix(0, 0)
	l.base, l.now, l.grown, l.phase, l.rtt = 200, 200, 200, steady, 0.05
	l.ended(now.Add(time.Second), 50*time.Millisecond, 199, true, overloaded)
	if got := l.limit(now); got != 140 {
		t.Errorf("after a refusal the limit is %d, want 140", got)
	}
	l.ended(now.Add(time.Second+time.Millisecond), 50*time.Millisecond, 198, true, overloaded)
	if got := l.limit(now); got != 140 {
		t.Errorf("a second refusal of the same moment made it %d, want 140 still", got)
	}
	l.ended(now.Add(2*time.Second), 50*time.Millisecond, 139, true, timedOut)
	if got := l.limit(now); got != 70 {
		t.Errorf("after a timeout the limit is %d, want 70", got)
	}
}

// TestLimiterIsPoliteWhenWatchesEnd checks that few requests are in flight for some time after the
// server has ended a watch, except with a long queue.
func TestLimiterIsPoliteWhenWatchesEnd(t *testing.T) {
	l := newLimiter(0, 0)
	now := time.Unix(0, 0)
	l.base, l.now, l.grown, l.busy = 500, 500, 500, now
	l.endRamp(now)
	check := func(why string, want int) {
		t.Helper()
		if got := l.limit(now); got != want {
			t.Errorf("%s the limit is %d, want %d", why, got, want)
		}
	}
	check("before a watch has ended", 500)
	l.watchEnded(now)
	check("after a watch has ended", watchEndLimit)
	for range 1000 { // says nothing about the limit without politeness
		now = now.Add(time.Millisecond)
		l.ended(now, 50*time.Millisecond, watchEndLimit-1, true, succeeded)
	}
	check("after a thousand answers", watchEndLimit)
	l.waits(watchEndQueue)
	check("with a long queue", 500)
	l.waits(10)
	check("with what is left of a long queue", 500)
	l.waits(0)
	check("when nothing waits any more", watchEndLimit)
	now = now.Add(watchEndTime)
	check("long after a watch has ended", 500)
	l.base, l.now, l.grown = 20, 20, 20
	l.watchEnded(now)
	check("where few are best", 20)
	fixed := newLimiter(100, 0)
	fixed.watchEnded(now)
	if got := fixed.limit(now); got != 100 {
		t.Errorf("a fixed limit of 100 became %d", got)
	}
}

// TestLimiterStaysInBounds feeds the limiter random input.
func TestLimiterStaysInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := rapid.IntRange(1, 2000).Draw(t, "max")
		l := newLimiter(0, top)
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 2000).Draw(t, "samples") {
			now = now.Add(time.Duration(rapid.IntRange(0, 200).Draw(t, "gap")) * time.Millisecond)
			latency := time.Duration(rapid.IntRange(0, 3000).Draw(t, "latency")) * time.Millisecond
			v := verdict(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5}).Draw(t, "verdict"))
			l.ended(now, latency, rapid.IntRange(0, 1100).Draw(t, "inFlight"), rapid.Bool().Draw(t, "waiting"), v)
			if n := l.limit(now); n < 1 || n > top {
				t.Fatalf("limit %d is outside [1, %d]", n, top)
			}
		}
	})
}

// TestLimiterHoldsWithoutLoad checks that a server with little load does not change the limit.
func TestLimiterHoldsWithoutLoad(t *testing.T) {
	l := newLimiter(0, 0)
	now := time.Unix(0, 0)
	for range 10_000 {
		now = now.Add(5 * time.Millisecond)
		l.ended(now, 4*time.Millisecond, 0, false, succeeded)
	}
	if got := l.limit(now); got != limitStart {
		t.Errorf("the limit went to %d, want %d", got, limitStart)
	}
}

// TestLimiterForgetsAcrossBreaks checks that rates from before a pause, and windows of a step that
// an overload broke off, do not count afterwards.
func TestLimiterForgetsAcrossBreaks(t *testing.T) {
	l := newLimiter(0, 0)
	now := time.Unix(0, 0)
	l.phase, l.rampRate, l.rampError, l.rtt = rampUp, 1000, 0.01, 0.05
	l.lately = [2]float64{6.9, 6.9}
	l.measured(now, 800, 0.01) // may have fallen: measured again
	if l.samples.windows != 1 {
		t.Fatalf("%v windows of the step, want one that waits for another", l.samples.windows)
	}
	l.cut(now.Add(time.Second), 0.7)
	if l.samples.windows != 0 {
		t.Error("after an overload the step that it broke off still counts")
	}
	noise := l.noise
	l.ramp(now.Add(time.Minute))
	l.measured(now.Add(time.Minute), 100, 0.01)
	l.measured(now.Add(time.Minute), 150, 0.01)
	if l.noise != noise {
		t.Errorf("noise %v after two windows of a new ramp, want %v as before", l.noise, noise)
	}
}
