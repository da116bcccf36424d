package controlloop

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
)

// TestTurnsYield checks that turns that yield delay no others, however many they are, and
// that no more than Workers turns run at a time.
func TestTurnsYield(t *testing.T) {
	const workers, yielding = 2, 50
	answered := make(chan struct{})
	var working, most atomic.Int32
	var waiting, ended sync.WaitGroup
	waiting.Add(yielding)
	ended.Add(yielding + workers)
	var loop *Loop[int, int]
	loop = New[int, int](Config[int]{Workers: workers, Turn: func(key int) {
		enter := func() {
			if n := working.Add(1); n > most.Load() {
				most.Store(n)
			}
		}
		enter()
		if key < yielding {
			working.Add(-1)
			loop.Yield(func() {
				waiting.Done()
				<-answered
			})
			enter()
		}
		working.Add(-1)
		ended.Done()
	}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); loop.Run(ctx) }()
	for key := range yielding {
		loop.Wake(key)
	}
	waiting.Wait() // all of them, on two workers
	for key := range workers {
		loop.Wake(yielding + key)
	}
	close(answered)
	ended.Wait()
	loop.workers.mu.Lock()
	if loop.workers.yielding != 0 || loop.workers.workers > workers+yielding {
		t.Errorf("%d yield, %d workers", loop.workers.yielding, loop.workers.workers)
	}
	loop.workers.mu.Unlock()
	if most.Load() > workers {
		t.Errorf("%d turns at a time", most.Load())
	}
	stop()
	<-done
	if loop.workers.running.Wait(); len(loop.workers.places) != 0 {
		t.Errorf("%d places are held", len(loop.workers.places))
	}
}
