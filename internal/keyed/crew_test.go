package keyed

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
)

// TestTurnsStepAside checks that turns that are aside delay no others, however many they are, and
// that no more than Workers turns run at a time.
func TestTurnsStepAside(t *testing.T) {
	const workers, aside = 2, 50
	answered := make(chan struct{})
	var working, most atomic.Int32
	var waiting, ended sync.WaitGroup
	waiting.Add(aside)
	ended.Add(aside + workers)
	var loop *Loop[int, int]
	loop = New[int, int](Config[int]{Workers: workers, Turn: func(key int) {
		enter := func() {
			if n := working.Add(1); n > most.Load() {
				most.Store(n)
			}
		}
		enter()
		if key < aside {
			working.Add(-1)
			loop.Aside(func() {
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
	for key := range aside {
		loop.Wake(key)
	}
	waiting.Wait() // all of them, on two workers
	for key := range workers {
		loop.Wake(aside + key)
	}
	close(answered)
	ended.Wait()
	loop.crew.mu.Lock()
	if loop.crew.aside != 0 || loop.crew.workers > workers+aside {
		t.Errorf("%d aside, %d workers", loop.crew.aside, loop.crew.workers)
	}
	loop.crew.mu.Unlock()
	if most.Load() > workers {
		t.Errorf("%d turns at a time", most.Load())
	}
	stop()
	<-done
	if loop.crew.running.Wait(); len(loop.crew.places) != 0 {
		t.Errorf("%d places are held", len(loop.crew.places))
	}
}
