package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

func weighs(name string, weight int32) *schedulingv1beta1.Queue {
	q := queue(name, nil)
	q.Spec.Weight = weight
	return q
}

// held returns the CPUs of a queue's pods that are not leaving.
func (w *evictionWorld) held(queue string) (cores int64) {
	var all cluster.Occupants
	w.cluster.FollowOccupants(&all, w.view)
	for _, list := range all.On {
		for _, o := range list {
			if o.Queue == queue && o.Object != nil && o.Object.DeletionTimestamp == nil {
				cores += o.Request.At(place.CPU) / 1000
			}
		}
	}
	return cores
}

// settleEvictions has victims leave, and wait anew with their gang, until nobody is evicted any more. It
// returns the queues that lost pods.
func (w *evictionWorld) settleEvictions(gangs map[string]*Gang, fail func(string, ...any)) map[string]bool {
	lost := map[string]bool{}
	for rounds := 0; ; rounds++ {
		if rounds > 100 {
			fail("evictions do not end: %v", w.evicted)
		}
		w.look()
		if len(w.evicted) == 0 {
			return lost
		}
		gone, again := map[string]bool{}, map[string]bool{}
		for _, what := range w.evicted {
			if gang, _, found := strings.Cut(what, " for "); found {
				again[gang], lost[gangs[gang].Queue] = true, true
			} else {
				gone[what] = true
			}
		}
		w.evicted = nil
		for key, g := range gangs {
			if !again[key] {
				continue
			}
			for _, u := range g.Demands[0].Units {
				if p, _ := w.cluster.Pod(u); p != nil && gone[u.Name] {
					w.cluster.DeletePod(p)
				}
			}
			back := *g
			back.Demands = slices.Clone(g.Demands)
			back.Demands[0].Units = slices.DeleteFunc(slices.Clone(g.Demands[0].Units), func(u types.NamespacedName) bool {
				p, _ := w.cluster.Pod(u)
				return p != nil
			})
			if have := len(g.Demands[0].Units) - len(back.Demands[0].Units); have > 0 {
				back.MinMember, back.Demands[0].Min, back.Surplus = 0, 0, len(back.Demands[0].Units)
			}
			w.Submit(&back)
		}
	}
}

// TestWeightsTakeBackWhatTheyGive has a queue use all of the cluster before another one wants a part.
func TestWeightsTakeBackWhatTheyGive(t *testing.T) {
	for name, c := range map[string]struct {
		cfg     Evictions
		change  func(a, b *schedulingv1beta1.Queue)
		size    int // pods of each gang of a, of 8 in all
		wanted  int // gangs of b, of one pod
		a, b    int64
		evicted bool
	}{
		"by weight":                        {size: 1, wanted: 8, a: 2, b: 6, evicted: true},
		"no more than is wanted":           {size: 1, wanted: 3, a: 5, b: 3, evicted: true},
		"not a gang that is partly due":    {size: 8, wanted: 3, a: 8, b: 0},
		"gangs as far as they are not due": {size: 3, wanted: 8, a: 3, b: 5, evicted: true},
		"off":                              {cfg: Evictions{NoReclaim: true}, size: 1, wanted: 8, a: 8, b: 0},
		"not from a queue that is not reclaimable": {size: 1, wanted: 8, a: 8, b: 0, change: func(a, _ *schedulingv1beta1.Queue) {
			a.Spec.Reclaimable = new(bool)
		}},
		"what a queue states counts for it": {size: 1, wanted: 8, a: 7, b: 1, evicted: true, change: func(_, b *schedulingv1beta1.Queue) {
			b.Spec.Deserved = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := weighs("a", 1), weighs("b", 3)
			if c.change != nil {
				c.change(a, b)
			}
			c.cfg.ReclaimByWeight = true
			w := evictionWorldOf(t, c.cfg, a, b)
			w.node("n1", "8")
			gangs := map[string]*Gang{}
			submit := func(queue string, i, size int) {
				g := w.gang(fmt.Sprint(queue, i), size, "1")
				g.Queue, gangs[g.Key] = queue, g
				w.Submit(g)
			}
			for i := range 8 / c.size {
				submit("a", i, c.size)
			}
			w.run()
			for i := range c.wanted {
				submit("b", i, 1)
			}
			lost := w.settleEvictions(gangs, t.Fatalf)
			if w.held("a") != c.a || w.held("b") != c.b || len(lost) > 0 != c.evicted || lost["b"] {
				t.Errorf("a has %d, want %d; b has %d, want %d; pods of %v left", w.held("a"), c.a, w.held("b"), c.b, lost)
			}
			for key, e := range w.pending.gangs {
				if w.held("b") == 6 && w.evictions.hasRight(e) {
					t.Errorf("%s may evict others, and the queues have what they deserve", key)
				}
			}
		})
	}
}

// TestWeightsNeverTakeWhatIsDue checks, for random gangs and weights, that evictions by weight end, and
// that no queue loses what its weight gives it.
func TestWeightsNeverTakeWhatIsDue(t *testing.T) {
	evictions := 0
	rapid.Check(t, func(rt *rapid.T) {
		var queues []*schedulingv1beta1.Queue
		for i := range rapid.IntRange(2, 4).Draw(rt, "queues") {
			queues = append(queues, weighs(fmt.Sprint("q", i), rapid.Int32Range(1, 4).Draw(rt, "weight")))
		}
		w := evictionWorldOf(t, Evictions{ReclaimByWeight: true}, queues...)
		for i := range rapid.IntRange(1, 3).Draw(rt, "nodes") {
			w.node(fmt.Sprint("n", i), fmt.Sprint(rapid.IntRange(2, 8).Draw(rt, "room")))
		}
		gangs := map[string]*Gang{}
		for i := range rapid.IntRange(2, 10).Draw(rt, "gangs") {
			n := rapid.IntRange(1, 4).Draw(rt, "pods")
			g := w.elastic(fmt.Sprint("g", i), rapid.IntRange(1, n).Draw(rt, "least"), n)
			g.Demands[0].Template = template(fmt.Sprint(rapid.IntRange(1, 2).Draw(rt, "cpu")))
			g.Queue = rapid.SampledFrom(queues).Draw(rt, "queue").Name
			gangs[g.Key] = g
			w.Submit(g)
			w.clock.Step(time.Second)
			if !rapid.Bool().Draw(rt, "settle") {
				continue
			}
			for name := range w.settleEvictions(gangs, rt.Fatalf) {
				evictions++
				if due := w.ledger.Deserved(name).At(place.CPU); w.held(name)*1000 < due {
					rt.Fatalf("queue %s has %d of %dm CPU and lost pods", name, w.held(name), due)
				}
			}
		}
	})
	t.Log(evictions, "queues lost pods")
}

// TestClaimsDoNotMakeOthersDeserveLess has two queues claim 2 CPUs each of a queue that has 8 of 9 and deserves
// 5. The first claim must not make it deserve less, although its claimant still waits.
func TestClaimsDoNotMakeOthersDeserveLess(t *testing.T) {
	w := evictionWorldOf(t, Evictions{ReclaimByWeight: true}, weighs("a", 1), weighs("b", 1), weighs("c", 1))
	for i, room := range []string{"2", "3", "4"} {
		w.node(fmt.Sprint("n", i), room)
	}
	a := w.elastic("a", 1, 4)
	a.Demands[0].Template, a.Queue = template("2"), "a"
	w.Submit(a)
	gangs := map[string]*Gang{"a": a}
	w.settleEvictions(gangs, t.Fatalf)
	for _, name := range []string{"b", "c"} {
		g := w.gang(name, 1, "2")
		g.Queue, gangs[name] = name, g
		w.Submit(g)
		w.clock.Step(time.Second)
	}
	w.settleEvictions(gangs, t.Fatalf)
	if w.held("a") != 6 {
		t.Errorf("a has %d CPUs", w.held("a"))
	}
}
