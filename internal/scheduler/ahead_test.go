package scheduler

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// aheadWorld has one node of 3 CPUs and about bound pods of waiting gangs.
func aheadWorld(t testing.TB, bound int, queues ...*schedulingv1beta1.Queue) *world {
	w := worldOf(t, Config{PodsAhead: bound}, queues...)
	w.writes = true
	w.node("n1", "3")
	return w
}

// waiting submits a gang of pods of one CPU that wants pods ahead.
func (w *world) waiting(key, queue string, pods int) *Gang {
	g := w.gang(key, pods, "1")
	g.Queue, g.Ahead, g.Created = queue, true, w.clock.Now()
	w.Submit(g)
	w.clock.Step(time.Millisecond)
	return g
}

// later lets time pass until pods of waiting gangs are asked for, and forgets what was said before.
func (w *world) later() {
	w.run()
	w.said = nil
	w.clock.Step(aheadAfter)
	w.cycle()
}

func TestPodsAheadOfGangsThatWait(t *testing.T) {
	w := aheadWorld(t, 100)
	w.Submit(w.gang("without", 5, "1"))
	w.waiting("fits", "default", 3)
	w.waiting("waits", "default", 2)
	w.run()
	expect(t, w.heard(), "fits+3, waits: NotEnoughResources, without: NotEnoughResources")
	w.clock.Step(aheadAfter / 2)
	w.cycle()
	expect(t, w.heard(), "") // most gangs that wait do not wait for long
	if due := w.ahead.due(); due.IsZero() || due.After(w.clock.Now().Add(aheadAfter)) {
		t.Errorf("the next pass is at %v, now is %v", due, w.clock.Now())
	}
	w.clock.Step(aheadAfter / 2)
	w.cycle()
	expect(t, w.heard(), "waits: pods [[0 1]]")
	w.clock.Step(time.Minute)
	w.cycle()
	expect(t, w.heard(), "") // once
	//   The owner submits the gang again when the pods exist; one of them was deleted meanwhile.
	again := w.gang("waits", 2, "1")
	again.Ahead, again.Demands[0].Existing = true, []bool{false, true}
	w.Submit(again)
	w.later()
	expect(t, w.heard(), "waits: pods [[0]]")
	w.finish("fits")
	w.run()
	expect(t, w.heard(), "waits+2")
}

// TestPodsAheadAreBounded checks that the first gangs of queues have pods in any case, and others only as
// long as fewer pods than the bound exist.
func TestPodsAheadAreBounded(t *testing.T) {
	w := aheadWorld(t, 20, queue("other", nil))
	for i := range 4 {
		w.waiting(fmt.Sprint("a", i), "default", 8)
	}
	for i := range 2 {
		w.waiting(fmt.Sprint("b", i), "other", 8)
	}
	w.later()
	expect(t, w.heard(), "a0: pods [[0 1 2 3 4 5 6 7]], a1: pods [[0 1 2 3 4 5 6 7]], b0: pods [[0 1 2 3 4 5 6 7]]")
	w.Withdraw("b0")
	w.later()
	expect(t, w.heard(), "b1: pods [[0 1 2 3 4 5 6 7]]")
	w.cluster.UpsertQueue(queue("third", nil))
	w.waiting("c0", "third", 5)
	w.waiting("c1", "third", 5)
	w.later()
	expect(t, w.heard(), "c0: pods [[0 1 2 3 4]]")
}

// TestPodsAheadStayWithinTheQueue checks that no pods are asked for that the queue would not take.
func TestPodsAheadStayWithinTheQueue(t *testing.T) {
	w := aheadWorld(t, 100, queue("small", cpus(12)))
	w.waiting("runs", "small", 2)
	w.waiting("a", "small", 6)
	w.waiting("b", "small", 6) // 2 + 6 + 6 are too many
	w.waiting("c", "small", 4)
	w.waiting("huge", "small", 13)
	w.later()
	expect(t, w.heard(), "a: pods [[0 1 2 3 4 5]], c: pods [[0 1 2 3]]")
	w.finish("runs")
	w.later()
	expect(t, w.heard(), "")
	w.Withdraw("a")
	w.later()
	expect(t, w.heard(), "b: pods [[0 1 2 3 4 5]]")
	//   Nothing of the pass stays in the ledger: the queue may hold all that it may.
	w.Withdraw("b")
	w.Withdraw("huge")
	w.node("n2", "64")
	w.run()
	w.said = nil
	w.waiting("e", "small", 8)
	w.run()
	expect(t, w.heard(), "e+8")
}

// TestPodsAheadByChance checks for random gangs and limits that the pods asked for are within the bound
// and the limits of their queues, that no unit is asked for twice, and that the ledger is left as it was.
func TestPodsAheadByChance(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		bound, limit := rapid.IntRange(1, 30).Draw(r, "bound"), rapid.IntRange(1, 40).Draw(r, "limit")
		w := aheadWorld(t, bound, queue("small", cpus(limit)))
		w.node("n1", "0")
		sizes := map[string]int{}
		for i := range rapid.IntRange(1, 12).Draw(r, "gangs") {
			key, q := fmt.Sprintf("job/ns/%02d", i), rapid.SampledFrom([]string{"small", "default"}).Draw(r, "queue")
			sizes[key] = rapid.IntRange(1, 12).Draw(r, "pods")
			w.waiting(key, q, sizes[key])
		}
		w.later()
		total, small, largest := 0, 0, 0
		for key, e := range w.pending.gangs {
			n := e.existingUnits()
			if n != 0 && n != sizes[key] {
				t.Fatalf("%s has %d of %d pods", key, n, sizes[key])
			}
			if total += n; e.gang.Queue == "small" {
				small += n
			}
			largest = max(largest, n)
		}
		if small > limit {
			t.Fatalf("%d pods in a queue of %d", small, limit)
		}
		if total > bound+2*largest {
			t.Fatalf("%d pods, the bound is %d and the largest gang has %d", total, bound, largest)
		}
		for _, name := range []string{"small", "default"} {
			if u := w.ledger.AdmitPromised(name, w.cluster.Dims().Vector(cpus(limit))); u != nil {
				t.Fatalf("what queue %s holds has changed: %s", name, u.Detail())
			}
		}
		w.said = nil
		w.clock.Step(time.Minute)
		w.cycle()
		if said := w.heard(); total > 0 && said != "" {
			t.Fatalf("said again: %s", said)
		}
	})
}
