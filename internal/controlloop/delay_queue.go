package controlloop

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// delayQueue holds keys that become due at a later time, each at the earliest time requested. Most
// calls of add change nothing, because an earlier time is set; such a call costs one lookup.
type delayQueue[K comparable] struct {
	clock   clock.WithTicker
	changed chan struct{} // tells run that the first element has changed

	mu    sync.Mutex
	byKey map[K]*delay[K]
	heap  delayHeap[K]
}

type delay[K comparable] struct {
	key   K
	at    time.Time
	index int
}

func newDelayQueue[K comparable](c clock.WithTicker) *delayQueue[K] {
	return &delayQueue[K]{clock: c, changed: make(chan struct{}, 1), byKey: map[K]*delay[K]{}}
}

func (d *delayQueue[K]) add(key K, after time.Duration) {
	at := d.clock.Now().Add(after)
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.byKey[key]
	switch {
	case x == nil:
		x = &delay[K]{key: key, at: at}
		d.byKey[key] = x
		heap.Push(&d.heap, x)
	case !at.Before(x.at):
		return
	default:
		x.at = at
		heap.Fix(&d.heap, x.index)
	}
	if d.heap[0] == x {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// run calls due for each key when its time has come, until ctx is done.
func (d *delayQueue[K]) run(ctx context.Context, due func(K)) {
	for {
		var timer clock.Timer
		var fires <-chan time.Time
		if wait, some := d.popDue(due); some {
			timer = d.clock.NewTimer(wait)
			fires = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-d.changed:
		case <-fires:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// popDue calls due for the keys that are due, and returns the time until the next key is due. some
// is false if there is no further key.
func (d *delayQueue[K]) popDue(due func(K)) (wait time.Duration, some bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock.Now()
	for len(d.heap) > 0 {
		x := d.heap[0]
		if wait := x.at.Sub(now); wait > 0 {
			return wait, true
		}
		heap.Pop(&d.heap)
		delete(d.byKey, x.key)
		due(x.key)
	}
	return 0, false
}

// delayHeap has the earliest time first.
type delayHeap[K comparable] []*delay[K]

func (h delayHeap[K]) Len() int           { return len(h) }
func (h delayHeap[K]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h delayHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *delayHeap[K]) Push(x any) {
	d := x.(*delay[K])
	d.index = len(*h)
	*h = append(*h, d)
}

func (h *delayHeap[K]) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
