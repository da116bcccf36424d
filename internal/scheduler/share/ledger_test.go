package share

import (
	"fmt"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func cpu(n int64) place.Vector { return place.Vector{1000 * n} }

// 100,000 gangs in 10 queues, each placed when its turn comes.
func BenchmarkDrain(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		l := New(place.NewDims(), cpu(1000))
		for q := range 10 {
			l.SetQueue(Queue{Name: fmt.Sprint("q", q), Weight: int32(q + 1)})
		}
		for g := range 100_000 {
			l.Submit(Gang{Key: fmt.Sprint(g), Queue: fmt.Sprint("q", g%10), Created: epoch, Request: cpu(1)})
		}
		for {
			g, ok := l.Next()
			if !ok {
				break
			}
			l.Placed(g.Key, g.Request)
		}
	}
}
