package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

const overdueAfter = 10 * time.Minute

// lasting returns a template of a pod of one CPU that says how long it runs; 0: it does not.
func lasting(d time.Duration) *corev1.Pod {
	key := "1 CPU for " + d.String()
	if templates[key] == nil {
		t := template("1").DeepCopy()
		if d > 0 {
			t.Annotations = map[string]string{schedulingv1beta1.ExpectedDurationAnnotation: d.String()}
		}
		templates[key] = t
	}
	return templates[key]
}

// stream is the life of small gangs around a large one: they end when their time has come.
type stream struct {
	*world
	ends map[string]time.Time // of gangs that run
	long map[string]time.Duration
}

func newStream(t testing.TB, cfg Config, queues ...*schedulingv1beta1.Queue) *stream {
	cfg.OverdueAfter = overdueAfter
	w := worldOf(t, cfg, queues...)
	w.writes = true
	return &stream{world: w, ends: map[string]time.Time{}, long: map[string]time.Duration{}}
}

// small submits a gang of n pods that run for d.
func (s *stream) small(key, queue string, n int, d time.Duration, says bool) *Gang {
	g := s.gang(key, n, "1")
	g.Queue = queue
	if g.Demands[0].Template = lasting(0); says {
		g.Demands[0].Template = lasting(d)
	}
	s.long[key] = d
	s.Submit(g)
	return g
}

// step lets time pass, ends the gangs whose time has come, and runs the scheduler.
func (s *stream) step(d time.Duration) {
	s.clock.Step(d)
	for key, at := range s.ends {
		if !s.clock.Now().Before(at) {
			s.finish(key)
			delete(s.ends, key)
			delete(s.long, key)
		}
	}
	s.run()
	for key, pods := range s.on {
		if _, known := s.ends[key]; !known && len(pods) > 0 && s.long[key] > 0 {
			s.ends[key] = s.clock.Now().Add(s.long[key])
		}
	}
}

// TestALargeGangStartsBehindAnEndlessStream submits a gang that needs the whole cluster, or all that
// its queue may have, behind random streams of small gangs that would keep it busy for ever. The
// large gang starts when it has waited for its bound and all pods have ended that ran then.
func TestALargeGangStartsBehindAnEndlessStream(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		nodes, size := rapid.IntRange(1, 4).Draw(rt, "nodes"), rapid.IntRange(1, 4).Draw(rt, "CPUs of a node")
		places := nodes * size
		byCapability := rapid.Bool().Draw(rt, "the queue's capability is the limit")
		limit := corev1.ResourceList(nil)
		if byCapability {
			limit = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(places), resource.DecimalSI)}
			nodes *= 3
		}
		s := newStream(t, Config{}, queue("mine", limit), queue("other", nil))
		for i := range nodes {
			s.node(fmt.Sprint("n", i), fmt.Sprint(size))
		}
		const longest = 20 * time.Minute
		queues := []string{"mine", "other"}
		if byCapability {
			queues = queues[:1]
		}
		number := 0
		feed := func(backlog int) {
			waiting := 0
			for key := range s.pending.gangs {
				if strings.HasPrefix(key, "small") {
					waiting++
				}
			}
			for ; waiting < backlog; waiting++ {
				number++
				s.small(fmt.Sprint("small", number), rapid.SampledFrom(queues).Draw(rt, "queue"), rapid.IntRange(1, max(1, size/2)).Draw(rt, "pods"),
					time.Duration(rapid.IntRange(1, 20).Draw(rt, "minutes"))*time.Minute, rapid.Bool().Draw(rt, "says how long"))
			}
		}
		for len(s.pending.gangs) == 0 { // fill all places
			feed(1)
			s.step(time.Second)
		}
		for key := range s.pending.gangs {
			s.Withdraw(key)
		}
		s.step(time.Second)
		large := s.gang("large", places, "1")
		large.Queue = "mine"
		own := time.Duration(0)
		if rapid.Bool().Draw(rt, "has a bound of its own") {
			own = time.Duration(rapid.IntRange(1, 8).Draw(rt, "bound")) * time.Minute
			large.WaitAtMost = own
		} else {
			own = overdueAfter
		}
		s.Submit(large)
		submitted := s.clock.Now()
		for len(s.on["large"]) == 0 {
			feed(2 * places)
			s.step(15 * time.Second)
			used := map[string]int{}
			for key, pods := range s.on {
				for _, a := range pods {
					if used[a.Node]++; used[a.Node] > size {
						rt.Fatalf("%s has more than %d pods, of %s among others", a.Node, size, key)
					}
				}
			}
			if waited := s.clock.Since(submitted); waited > own+longest+time.Minute {
				for key, pods := range s.on {
					rt.Logf("%s: %d pods, ends in %v, %v", key, len(pods), s.ends[key].Sub(s.clock.Now()), s.long[key])
				}
				for _, c := range s.evictions.claims {
					rt.Logf("kept for %s: %d pods, %v", c.gang, len(c.room), c.why)
				}
				rt.Fatalf("the gang waits for %v, with a bound of %v: %s", waited, own, s.waiting("large"))
			}
		}
		if n := len(s.on["large"]); n != places {
			rt.Fatalf("%d of %d pods have nodes", n, places)
		}
		if s.evictions.claims["large"] != nil {
			rt.Fatal("capacity is still kept")
		}
	})
}

// waiting returns what the owner of a gang was told last.
func (s *stream) waiting(key string) string {
	e := s.pending.gangs[key]
	if e == nil || e.queue.blocked == nil {
		return ""
	}
	return e.queue.blocked.reason.Eviction
}

func TestAnOverdueGang(t *testing.T) {
	s := newStream(t, Config{})
	s.node("n1", "2")
	s.small("short", "default", 2, 15*time.Minute, true)
	s.step(0)
	s.node("n2", "2")
	s.small("long", "default", 2, time.Hour, true)
	s.step(0)
	s.Submit(s.gang("large", 2, "1"))
	s.step(time.Second)
	expect(t, s.waiting("large"), "")
	s.small("late", "default", 1, time.Hour, false)
	s.step(overdueAfter)
	expect(t, s.waiting("large"), "what becomes free on 1 node is kept for it, because it has waited longer than 10m0s")
	expect(t, s.waiting("late"), "") // nothing is free

	// 1. On the other node, others start as before.
	s.node("n3", "1")
	s.step(0)
	if len(s.on["late"]) != 1 || s.on["late"][0].Node != "n3" {
		t.Errorf("late is on %v", s.on["late"])
	}
	// 2. A gang of higher priority does not wait, and neither does one that ends in time.
	urgent := s.gang("urgent", 1, "1")
	urgent.Priority = 10
	s.Submit(urgent)
	s.small("quick", "default", 1, time.Minute, true)
	s.small("slow", "default", 1, 30*time.Minute, true)
	s.node("n3", "2")
	s.step(0)
	if len(s.on["urgent"]) != 1 || len(s.on["quick"])+len(s.on["slow"]) != 0 {
		t.Errorf("urgent has %d pods, quick %d, slow %d", len(s.on["urgent"]), len(s.on["quick"]), len(s.on["slow"]))
	}
	// 3. It starts when the pods have ended.
	s.step(5*time.Minute + time.Second)
	if n := len(s.on["large"]); n != 2 {
		t.Errorf("the large gang has %d pods", n)
	}
	if len(s.evictions.claims) != 0 {
		t.Error("capacity is still kept")
	}
}

// TestBackfill checks who may use capacity that is kept for another gang and is free already.
func TestBackfill(t *testing.T) {
	s := newStream(t, Config{})
	s.node("n1", "2")
	s.small("half", "default", 1, 30*time.Minute, true)
	s.step(0)
	s.Submit(s.gang("large", 2, "1"))
	s.step(overdueAfter)
	s.step(2 * time.Second) // it starts in 20 minutes
	s.small("slow", "default", 1, 25*time.Minute, true)
	s.small("unknown", "default", 1, time.Minute, false)
	s.step(time.Second)
	if len(s.on["slow"])+len(s.on["unknown"]) != 0 {
		t.Error("capacity that is kept was used too long")
	}
	expect(t, s.waiting("unknown"), "capacity is kept for a gang that has waited longer")
	s.small("quick", "default", 1, 10*time.Minute, true)
	s.step(time.Second)
	if len(s.on["quick"]) != 1 {
		t.Error("capacity that is kept is not used although it would be released in time")
	}
	s.step(20 * time.Minute)
	if len(s.on["large"]) != 2 {
		t.Errorf("the large gang has %d pods", len(s.on["large"]))
	}
}

// TestPriorityPassesOverdueGangs checks that capacity is not kept from gangs of higher priority in the
// same queue, and is kept from others.
func TestPriorityPassesOverdueGangs(t *testing.T) {
	s := newStream(t, Config{}, queue("second", nil))
	s.node("n1", "2")
	s.small("half", "default", 1, time.Hour, false)
	s.step(0)
	s.Submit(s.gang("large", 2, "1"))
	s.step(overdueAfter)
	s.step(2 * time.Second)
	elsewhere := s.gang("elsewhere", 1, "1")
	elsewhere.Priority, elsewhere.Queue = 20, "second"
	s.Submit(elsewhere)
	s.step(time.Second)
	urgent := s.gang("urgent", 1, "1")
	urgent.Priority = 10
	s.Submit(urgent)
	s.step(time.Second)
	if len(s.on["elsewhere"]) != 0 || len(s.on["urgent"]) != 1 {
		t.Errorf("elsewhere has %d pods, urgent %d", len(s.on["elsewhere"]), len(s.on["urgent"]))
	}
}

// TestNothingIsDueAtOnce checks that the scheduler does not spin for gangs that are overdue and for
// which nothing can be kept.
func TestNothingIsDueAtOnce(t *testing.T) {
	s := newStream(t, Config{}, queue("second", nil))
	s.node("n1", "2")
	s.small("before", "default", 2, time.Hour, false)
	s.step(0)
	large := s.gang("large", 3, "1")
	large.Queue = "second"
	s.Submit(large)
	s.Submit(s.gang("fits", 2, "1"))
	s.step(overdueAfter)
	for i := range 5 {
		s.step(time.Second)
		s.step(40 * time.Second)
		s.node(fmt.Sprint("tiny", i), "0") // nodes may be looked for again, and the cycle is over
		if !s.due().After(s.clock.Now()) {
			t.Fatalf("a cycle is due at %v, and it is %v", s.due(), s.clock.Now())
		}
	}
	if s.evictions.claims["fits"] == nil {
		t.Error("a gang that can never fit holds up the overdue gangs of other queues")
	}
}

// TestClaimsOfOverdueGangsEnd checks when capacity is no longer kept, and for whom none is.
func TestClaimsOfOverdueGangsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stream)
		kept   int
	}{
		"the gang is withdrawn": {func(s *stream) { s.Withdraw("large") }, 0},
		"its node goes":         {func(s *stream) { s.cluster.DeleteNode("n1") }, 0},
		"its queue is closed": {func(s *stream) {
			closed := queue("default", nil)
			closed.Status.State = schedulingv1beta1.QueueClosed
			s.cluster.UpsertQueue(closed)
		}, 0},
		"it is submitted again":  {func(s *stream) { s.Submit(s.gang("large", 2, "1")) }, 1},
		"others wait":            {func(s *stream) { s.small("other", "default", 2, time.Hour, false) }, 1},
		"it turns out too large": {func(s *stream) { s.Submit(s.gang("large", 200, "1")) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, Config{})
			s.node("n1", "2")
			s.small("before", "default", 2, time.Hour, false)
			s.step(0)
			s.Submit(s.gang("large", 2, "1"))
			s.step(time.Second)
			s.step(overdueAfter)
			if n := len(s.evictions.claims); n != 1 {
				t.Fatalf("capacity is kept for %d gangs", n)
			}
			c.change(s)
			s.step(time.Minute)
			if n := len(s.evictions.claims); n != c.kept {
				t.Errorf("capacity is kept for %d gangs, want %d: %v, %v", n, c.kept, s.waiting("large"), s.evictions.claims["large"])
			}
		})
	}
	t.Run("a gang that can never fit", func(t *testing.T) {
		s := newStream(t, Config{})
		s.node("n1", "2")
		s.small("before", "default", 2, time.Hour, false)
		s.step(0)
		s.Submit(s.gang("large", 3, "1"))
		s.step(time.Second)
		s.step(overdueAfter)
		if n := len(s.evictions.claims); n != 0 {
			t.Errorf("capacity is kept for %d gangs", n)
		}
	})
}
