package scheduler

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// elastic returns a gang of n pods of one CPU, of which least are its minimum.
func (w *world) elastic(key string, least, n int) *Gang {
	g := w.gang(key, n, "1")
	g.MinMember, g.Demands[0].Min, g.Surplus = least, 0, n-least
	return g
}

// TestSurplusComesAfterMinimums submits an elastic gang, and then another gang, to four places.
func TestSurplusComesAfterMinimums(t *testing.T) {
	for name, c := range map[string]struct {
		least, pods int    // of the elastic gang
		queue       string // of the other gang
		other       int    // its pods
		used        int    // places that pods of the other queue take already
		resume      bool   // the elastic gang has pods, but fewer than its minimum
		want        string
	}{
		"in one queue": {
			1, 64, "default", 1, 0, false, "elastic+1, elastic+2, elastic: NotEnoughResources, other+1",
		},
		"in another queue": {
			1, 64, "second", 2, 0, false, "elastic+1, elastic+1, elastic: NotEnoughResources, other+2",
		},
		"in a queue that has more than its share": {
			1, 64, "second", 1, 2, false, "elastic+1, elastic+1, elastic: NotEnoughResources, other: NotEnoughResources",
		},
		"a minimum that does not fit": {
			1, 4, "default", 4, 0, false, "elastic+1, elastic+3, other: NotEnoughResources",
		},
		"a gang that is completed": {
			1, 64, "default", 1, 0, true, "elastic+4, elastic: NotEnoughResources, other: NotEnoughResources",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, queue("second", nil))
			w.writes = true
			w.node("n1", "4")
			if c.used > 0 {
				g := w.gang("before", c.used, "1")
				g.Queue = c.queue
				w.Submit(g)
				w.run()
				w.heard()
			}
			g := w.elastic("elastic", c.least, c.pods)
			if c.resume {
				g.Resume, g.Surplus = true, 0
			}
			w.Submit(g)
			w.clock.Step(time.Second)
			other := w.gang("other", c.other, "1")
			other.Queue = c.queue
			w.Submit(other)
			w.run()
			expect(t, w.heard(), c.want)
		})
	}
}

// TestSurplusHoldsUpNobody checks that pods above the minimum do not hold up the gangs behind them in
// a FIFO queue, while a minimum does.
func TestSurplusHoldsUpNobody(t *testing.T) {
	fifo := queue("fifo", nil)
	fifo.Spec.DequeueStrategy = schedulingv1beta1.DequeueFIFO
	for name, c := range map[string]struct {
		least int
		want  string
	}{"surplus": {1, "first+1, first: NotEnoughResources, second+1"}, "a minimum": {2, "first: NotEnoughResources, second: BehindFirst"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, fifo)
			first, second := w.elastic("first", c.least, 2), w.gang("second", 1, "1")
			first.Demands[0].Template = template("2")
			first.Queue, second.Queue = "fifo", "fifo"
			w.node("n1", "3")
			w.Submit(first)
			w.run()
			w.clock.Step(time.Second)
			w.Submit(second)
			w.run()
			expect(t, w.heard(), c.want)
		})
	}
}

// TestSurplusNeverTakesAPlaceOfAMinimum checks, for random gangs of one queue that are submitted at
// the same time, that every gang starts that would fit if no surplus were placed, and that surplus
// takes all the room that is left.
func TestSurplusNeverTakesAPlaceOfAMinimum(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		room := rapid.IntRange(1, 20).Draw(rt, "room")
		w.node("n1", fmt.Sprint(room))
		var gangs []*Gang
		for i := range rapid.IntRange(1, 8).Draw(rt, "gangs") {
			n := rapid.IntRange(1, 6).Draw(rt, "pods")
			g := w.elastic(fmt.Sprint("g", i), rapid.IntRange(1, n).Draw(rt, "least"), n)
			g.Priority = int32(rapid.IntRange(0, 2).Draw(rt, "priority"))
			gangs = append(gangs, g)
			w.Submit(g)
		}
		w.run()
		placed, surplus := 0, 0
		for _, g := range gangs {
			n := len(w.on[g.Key])
			if n > 0 && n < g.MinMember {
				rt.Fatalf("%s has %d of %d pods", g.Key, n, g.MinMember)
			}
			placed += n
			surplus += max(0, n-g.MinMember)
		}
		if placed > room {
			rt.Fatalf("%d pods on %d places", placed, room)
		}
		for _, g := range gangs {
			switch n := len(w.on[g.Key]); {
			case n == 0 && g.MinMember <= room-placed+surplus:
				rt.Errorf("%s needs %d of %d places, %d of which are taken by surplus", g.Key, g.MinMember, room, surplus)
			case n >= g.MinMember && n < len(g.Demands[0].Units) && placed < room:
				rt.Errorf("%s has %d of %d pods, and %d of %d places are taken", g.Key, n, len(g.Demands[0].Units), placed, room)
			}
		}
	})
}
