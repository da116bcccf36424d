package procs

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	type windows struct {
		n    int
		used float64
		want int // processors after them
	}
	for name, sequence := range map[string][]windows{
		"little to do":                    {{1000, 0.3, 1}},
		"more and more":                   {{1, 0.8, 2}, {1, 1.9, 4}, {1, 3.9, 8}, {10, 8, 8}},
		"a pause is no reason":            {{2, 1.9, 4}, {calm - 1, 0, 4}, {1, 2, 4}, {calm - 1, 0, 4}},
		"less and less":                   {{3, 8, 8}, {calm, 1, 4}, {calm, 0.5, 2}, {calm, 0.1, 1}, {100, 0, 1}},
		"what fits into fewer stays":      {{2, 1.9, 4}, {1000, 1.1, 4}},
		"fewer are not too few the next":  {{3, 8, 8}, {calm, 8 * less, 4}, {1, 8 * less, 4}},
		"a number that is no power of 2":  {{9, 9, 6}, {calm, 0.1, 3}, {calm, 0.1, 2}, {calm, 0.1, 1}},
		"no more than there were, if one": {{10, 1, 1}},
	} {
		p := &pace{most: 8, now: 1}
		switch name {
		case "a number that is no power of 2":
			p.most = 6
		case "no more than there were, if one":
			p.most = 1
		}
		for i, w := range sequence {
			for range w.n {
				p.next(w.used)
			}
			if p.now != w.want {
				t.Errorf("%s, step %d: %d processors, want %d", name, i, p.now, w.want)
			}
		}
	}
}

// TestProcessorsFollowTheWork simulates work that uses more than there is, and then none.
func TestProcessorsFollowTheWork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var limit atomic.Int64
	limit.Store(3)
	begin := time.Now()
	var busy atomic.Bool
	var last atomic.Int64
	stop := start(func() time.Duration {
		if busy.Load() {
			last.Store(int64(10 * time.Since(begin)))
		}
		return time.Duration(last.Load())
	}, func() int { runtime.GOMAXPROCS(int(limit.Load())); return int(limit.Load()) }, time.Millisecond, 2*time.Millisecond, 5*time.Millisecond)
	await := func(n int) {
		t.Helper()
		for runtime.GOMAXPROCS(0) != n { // the test's own time limit ends it
			runtime.Gosched()
		}
	}
	await(1) // and it stays so: a number that passes could be missed
	busy.Store(true)
	await(3)
	limit.Store(6)
	await(6)
	busy.Store(false)
	await(1)
	stop()
	if n := runtime.GOMAXPROCS(0); n != 6 {
		t.Errorf("%d processors at the end, want the 6 that there may be", n)
	}
}

func TestCPUTime(t *testing.T) {
	for before := cpuTime(); cpuTime() == before; { // until some is used
	}
}
