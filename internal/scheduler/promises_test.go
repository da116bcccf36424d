package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

func cpus(n int) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}

// driver returns a gang of one pod of one CPU that announces n CPUs in all.
func (w *world) driver(key string, n int) *Gang {
	g := w.gang(key, 1, "1")
	g.Announced = cpus(n)
	return g
}

// TestDriversStartAsFarAsTheirPodsWillFit submits gangs that announce more than their pods request.
func TestDriversStartAsFarAsTheirPodsWillFit(t *testing.T) {
	w := newWorld(t, queue("small", cpus(6)))
	w.writes = true
	for i := range 4 {
		w.node(fmt.Sprint("n", i), "4")
	}
	for i := range 16 {
		w.Submit(w.driver(fmt.Sprintf("d%02d", i), 4))
		w.clock.Step(time.Second)
	}
	w.run()
	want := "d00+1, d01+1, d02+1, d03+1"
	for i := 4; i < 16; i++ {
		want += fmt.Sprintf(", d%02d: NotEnoughResources", i)
	}
	expect(t, w.heard(), want)

	// Others are not held up by promises.
	w.Submit(w.gang("job", 8, "1"))
	w.run()
	expect(t, w.heard(), "job+8")
	w.finish("job")
	w.run()
	expect(t, w.heard(), "")

	// A promise that is withdrawn lets the next one start, and so does one that becomes smaller.
	w.finish("d00")
	w.Promise("d00", "default", nil)
	w.run()
	expect(t, w.heard(), "d04+1")
	w.Promise("d01", "default", cpus(1))
	w.Promise("d02", "default", cpus(1))
	w.run()
	expect(t, w.heard(), "d05+1")
}

func TestAnnouncedPodsAndTheQueue(t *testing.T) {
	w := newWorld(t, queue("small", cpus(6)))
	w.writes = true
	w.node("n1", "64")
	for _, key := range []string{"a", "b"} {
		g := w.driver(key, 4)
		g.Queue = "small"
		w.Submit(g)
		w.clock.Step(time.Second)
	}
	w.run()
	expect(t, w.heard(), "a+1, b: QueueOverCapability")
	w.Promise("a", "small", cpus(1)) // two of its three other pods are not needed
	w.run()
	expect(t, w.heard(), "b+1")
}

// podless returns a gang without pods.
func (w *world) podless(key string, announced corev1.ResourceList) *Gang {
	w.clock.Step(time.Second)
	return &Gang{Key: key, Queue: "default", Created: w.clock.Now(), Owner: w, Announced: announced}
}

// TestPodsThatExistAreNotHeldUp covers gangs that announce no more than their pods request, as most
// operators do: they start, evict others and have capacity kept for them like gangs that announce
// nothing.
func TestPodsThatExistAreNotHeldUp(t *testing.T) {
	w := newEvictionWorld(t)
	w.node("n1", "8")
	w.put(w.driver("driver", 5))
	whole := func(g *Gang, n int) *Gang {
		g.Announced = cpus(n)
		return g
	}
	w.put(whole(w.gang("low", 7, "1"), 7)) // takes the room of the driver's executors
	w.Submit(whole(w.important("high", 6, "1"), 6))
	w.run()
	if got := w.left(); !strings.HasPrefix(got, "low for high, low-0") {
		t.Errorf("evicted: %s", got)
	}
	g := w.important("driver of high", 1, "1")
	g.Announced = cpus(2)
	w.Submit(g)
	w.run()
	expect(t, w.left(), "") // nothing makes room for pods that do not exist
}

// TestGroupsWithoutPodsThatInsist covers groups without pods which others leave no room: what makes
// room for them is found for their pods, which must exist for it.
func TestGroupsWithoutPodsThatInsist(t *testing.T) {
	t.Run("a group that may evict others starts", func(t *testing.T) {
		w := newEvictionWorld(t)
		w.node("n1", "4")
		w.put(w.gang("low", 4, "1"))
		w.Submit(w.podless("equal", cpus(2)))
		high := w.podless("high", cpus(2))
		high.Priority = 100
		w.Submit(high)
		never := w.podless("never", cpus(5)) // more than the cluster has
		never.Priority = 100
		w.Submit(never)
		w.run()
		expect(t, w.heard(), "equal: NotEnoughResources, high+0, never: NotEnoughResources")
	})
	t.Run("groups that have waited too long start one by one", func(t *testing.T) {
		s := newStream(t, Config{}, queue("small", cpus(3)))
		s.node("n1", "4")
		s.small("running", "default", 4, 0, false)
		s.run()
		for _, key := range []string{"a", "b"} {
			s.Submit(s.podless(key, cpus(2)))
		}
		above := s.podless("above", cpus(4))
		above.Queue = "small"
		s.Submit(above)
		s.run()
		expect(t, s.heard(), "a: NotEnoughResources, above: QueueOverCapability, b: NotEnoughResources, running+4")
		s.step(overdueAfter)
		expect(t, s.heard(), "a+0")
		s.Promise("a", "default", cpus(1)) // one of two pods has a node
		s.step(time.Minute)
		expect(t, s.heard(), "")
		s.Promise("a", "default", nil)
		s.step(time.Minute)
		expect(t, s.heard(), "b+0")
	})
}

// TestGroupsWithoutPodsStartWithAnEmptyCommit covers groups whose pods are created when they may
// start.
func TestGroupsWithoutPodsStartWithAnEmptyCommit(t *testing.T) {
	w := newWorld(t)
	w.node("n1", "4")
	w.Submit(w.podless("plain", nil))
	w.Submit(w.podless("three", cpus(3)))
	w.Submit(w.podless("two", cpus(2)))
	w.Submit(w.podless("many", cpus(100)))
	w.run()
	expect(t, w.heard(), "many: NotEnoughResources, plain+0, three+0, two: NotEnoughResources")
	// The group's pods take the place of the promise.
	g := w.gang("three", 3, "1")
	w.Submit(g)
	w.run()
	expect(t, w.heard(), "three+3")
	w.Promise("three", "default", nil)
	w.run()
	expect(t, w.heard(), "")
	w.finish("three")
	w.run()
	expect(t, w.heard(), "two+0")
}

// TestPromisesAreKept lets gangs announce pods, get them one by one, and end, in random order. At any
// time what is in use and what is promised fits into the cluster, and at rest no gang waits
// whose announced pods would fit.
func TestPromisesAreKept(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.writes = true
		room := rapid.IntRange(4, 24).Draw(rt, "room")
		w.node("n1", fmt.Sprint(room))
		announced := map[string]int{}
		more := map[string]int{} // pods besides the driver that exist, by gang
		made := 0
		for range rapid.IntRange(5, 60).Draw(rt, "events") {
			var running []string
			for i := range made {
				if key := fmt.Sprint("g", i); len(w.on[key]) > 0 {
					running = append(running, key)
				}
			}
			switch event := rapid.IntRange(0, 2).Draw(rt, "event"); {
			case event == 0 || len(running) == 0:
				key := fmt.Sprint("g", made)
				made++
				announced[key] = rapid.IntRange(2, 10).Draw(rt, "announced")
				w.Submit(w.driver(key, announced[key]))
			case event == 1:
				key := rapid.SampledFrom(running).Draw(rt, "grows")
				if 1+more[key] == announced[key] {
					continue
				}
				more[key]++
				g := w.gang(fmt.Sprint(key, "-", more[key]), 1, "1")
				w.Submit(g)
				w.run()
				if len(w.on[g.Key]) == 0 {
					rt.Fatalf("%s has no room for pod %d of %d", key, 1+more[key], announced[key])
				}
				w.Promise(key, "default", cpus(announced[key]-1-more[key]))
			default:
				key := rapid.SampledFrom(running).Draw(rt, "ends")
				w.finish(key)
				for i := range more[key] {
					w.finish(fmt.Sprint(key, "-", i+1))
				}
				w.Promise(key, "default", nil)
				delete(announced, key)
			}
			w.run()
			used := 0
			for key, n := range announced {
				if len(w.on[key]) > 0 {
					used += n
				}
			}
			if used > room {
				rt.Fatalf("%d CPUs are promised or in use, of %d", used, room)
			}
			for key, n := range announced {
				if len(w.on[key]) == 0 && used+n <= room {
					rt.Fatalf("%s waits for %d CPUs, and %d of %d are free", key, n, room-used, room)
				}
			}
		}
	})
}
