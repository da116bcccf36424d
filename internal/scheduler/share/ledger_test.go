package share

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// cpu returns an amount of n cpus.
func cpu(n int64) place.Vector { return place.Vector{1000 * n} }

func capability(n int64) Limits { return Limits{1000 * n} }

// waits adds a gang of n cpus with creation time epoch plus at seconds.
func waits(l *Ledger, queue, key string, n int64, at int, change ...func(*Gang)) {
	g := Gang{Key: key, Queue: queue, Created: epoch.Add(time.Duration(at) * time.Second), Request: cpu(n)}
	for _, c := range change {
		c(&g)
	}
	l.Submit(g)
}

// turns takes up to n gangs from the ledger in their order, and places each.
func turns(l *Ledger, n int) []string {
	var keys []string
	for range n {
		g, ok := l.Next()
		if !ok {
			break
		}
		l.Placed(g.Key, g.Request)
		keys = append(keys, g.Key)
	}
	return keys
}

func TestOrder(t *testing.T) {
	priority := func(p int32) func(*Gang) { return func(g *Gang) { g.Priority = p } }
	resume := func(g *Gang) { g.Resume = true }
	for name, tc := range map[string]struct {
		queues []Queue
		gangs  func(l *Ledger)
		want   []string
	}{
		"in a queue: what to resume, priority, age, key": {
			[]Queue{{Name: "q"}},
			func(l *Ledger) {
				waits(l, "q", "late", 1, 9)
				waits(l, "q", "b", 1, 5)
				waits(l, "q", "a", 1, 5)
				waits(l, "q", "urgent", 1, 9, priority(10))
				waits(l, "q", "half", 1, 9, priority(-1), resume)
			},
			[]string{"half", "urgent", "a", "b", "late"},
		},
		"equal queues take turns": {
			[]Queue{{Name: "p"}, {Name: "q"}},
			func(l *Ledger) {
				for i := range 3 {
					waits(l, "p", fmt.Sprint("p", i), 1, i)
					waits(l, "q", fmt.Sprint("q", i), 1, i)
				}
			},
			[]string{"p0", "q0", "p1", "q1", "p2", "q2"},
		},
		"turns go by weight when there is not enough for all": {
			[]Queue{{Name: "p", Weight: 3}, {Name: "q", Weight: 1}},
			func(l *Ledger) {
				for i := range 20 {
					waits(l, "p", fmt.Sprintf("p%02d", i), 1, i)
					waits(l, "q", fmt.Sprintf("q%02d", i), 1, i)
				}
			},
			[]string{"p00", "q00", "p01", "p02", "p03", "q01", "p04", "p05"},
		},
		"what to resume comes first, whatever the queue's share": {
			[]Queue{{Name: "p"}, {Name: "q"}},
			func(l *Ledger) {
				l.Charge("q", cpu(5))
				waits(l, "p", "p", 1, 0)
				waits(l, "q", "q", 1, 0, resume)
			},
			[]string{"q", "p"},
		},
		"a queue of higher priority goes first while below its share": {
			[]Queue{{Name: "p"}, {Name: "q", Priority: 1}},
			func(l *Ledger) {
				for i := range 8 {
					waits(l, "p", fmt.Sprint("p", i), 1, i)
					waits(l, "q", fmt.Sprint("q", i), 1, i)
				}
			},
			[]string{"q0", "q1", "q2", "q3", "q4", "p0", "p1"},
		},
		"a queue above its share goes last, but goes": {
			[]Queue{{Name: "p"}, {Name: "q"}},
			func(l *Ledger) {
				l.Charge("q", cpu(8))
				waits(l, "q", "q", 2, 0)
				waits(l, "p", "p0", 1, 0)
				waits(l, "p", "p1", 1, 0)
			},
			[]string{"p0", "p1", "q"},
		},
		"children divide what their parent deserves": {
			[]Queue{{Name: "a"}, {Name: "a1", Parent: "a"}, {Name: "a2", Parent: "a"}, {Name: "b"}},
			func(l *Ledger) {
				for i := range 9 {
					waits(l, "a1", fmt.Sprint("x", i), 1, i)
					waits(l, "a2", fmt.Sprint("y", i), 1, i)
					waits(l, "b", fmt.Sprint("b", i), 1, i)
				}
			},
			[]string{"x0", "b0", "y0", "b1", "x1", "b2", "y1", "b3"},
		},
		"closed queues only resume": {
			[]Queue{{Name: "q", Closed: true}},
			func(l *Ledger) {
				waits(l, "q", "new", 1, 0)
				waits(l, "q", "half", 1, 1, resume)
			},
			[]string{"half"},
		},
		"gangs of an unknown queue wait": {nil, func(l *Ledger) { waits(l, "q", "g", 1, 0) }, nil},
		"gangs of a queue whose parent is unknown wait": {
			[]Queue{{Name: "q", Parent: "p"}}, func(l *Ledger) { waits(l, "q", "g", 1, 0) }, nil,
		},
		"gangs of queues in a circle wait": {
			[]Queue{{Name: "q", Parent: "p"}, {Name: "p", Parent: "q"}}, func(l *Ledger) { waits(l, "q", "g", 1, 0) }, nil,
		},
		"gangs of a queue with queues below it wait": {
			[]Queue{{Name: "p"}, {Name: "q", Parent: "p"}}, func(l *Ledger) { waits(l, "p", "g", 1, 0) }, nil,
		},
		"a queue that is Set later": {nil, func(l *Ledger) {
			waits(l, "q", "g", 1, 0)
			l.Next()
			l.SetQueue(Queue{Name: "q"})
		}, []string{"g"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(place.NewDims(), cpu(10), tc.queues...)
			tc.gangs(l)
			if diff := cmp.Diff(tc.want, turns(l, max(len(tc.want), 1))); diff != "" {
				t.Error("turns (-want +got):", diff)
			}
		})
	}
}

func TestTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		queues []Queue
		held   map[string]int64
		others []string // queues with a gang that waits
		want   int      // of 100 pods of 1 cpu of queue q
	}{
		"no other queue waits":           {[]Queue{{Name: "q"}, {Name: "p"}}, map[string]int64{"p": 1}, nil, 100},
		"until the other's share":        {[]Queue{{Name: "q"}, {Name: "p"}}, map[string]int64{"p": 40}, []string{"p"}, 41},
		"at least one":                   {[]Queue{{Name: "q"}, {Name: "p"}}, map[string]int64{"q": 50, "p": 1}, []string{"p"}, 1},
		"shares go by weight":            {[]Queue{{Name: "q", Weight: 3}, {Name: "p"}}, map[string]int64{"p": 20}, []string{"p"}, 61},
		"the smallest share counts":      {[]Queue{{Name: "q"}, {Name: "p"}, {Name: "o"}}, map[string]int64{"p": 30, "o": 10}, []string{"p", "o"}, 11},
		"a higher priority, to the full": {[]Queue{{Name: "q", Priority: 1}, {Name: "p"}}, map[string]int64{"p": 5}, []string{"p"}, 51},
		"the parents' shares count": {
			[]Queue{{Name: "q", Parent: "x"}, {Name: "x"}, {Name: "y"}, {Name: "p", Parent: "y"}}, map[string]int64{"p": 25}, []string{"p"}, 26,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(place.NewDims(), cpu(100), tc.queues...)
			for q, n := range tc.held {
				l.Charge(q, cpu(n))
			}
			for _, q := range tc.others {
				waits(l, q, q, 100, 0)
			}
			waits(l, "q", "gang", 100, 0)
			if n := l.Turn("q", cpu(1), 100); n < tc.want || n > tc.want+1 { // by the slack
				t.Errorf("%d pods, want %d", n, tc.want)
			}
		})
	}
}

func TestParking(t *testing.T) {
	for _, fifo := range []bool{false, true} {
		l := New(place.NewDims(), cpu(10), Queue{Name: "q", FIFO: fifo}, Queue{Name: "r"})
		waits(l, "q", "large", 100, 0)
		waits(l, "q", "small", 1, 1)
		waits(l, "r", "other", 1, 2)
		l.Charge("r", cpu(9)) // so that q is first
		l.Park("large")
		want := []string{"small", "other"}
		if fifo {
			want = []string{"other"} // small waits behind large
		}
		if diff := cmp.Diff(want, turns(l, 5)); diff != "" {
			t.Errorf("fifo %v: turns (-want +got): %s", fifo, diff)
		}
		waits(l, "q", "urgent", 1, 3, func(g *Gang) { g.Priority = 1 })
		if g, _ := l.Next(); g.Key != "urgent" {
			t.Errorf("fifo %v: %s is next, but urgent sorts before what is parked", fifo, g.Key)
		}
		l.Remove("urgent")
		l.Wake("large")
		if g, _ := l.Next(); g.Key != "large" {
			t.Errorf("fifo %v: %q is next after large was woken", fifo, g.Key)
		}
		l.Park("large")
		l.Wake("large")
		l.Park("large")
		l.Remove("large")
		if got, want := l.Len(), map[bool]int{false: 0, true: 1}[fifo]; got != want {
			t.Errorf("fifo %v: %d gangs wait, want %d", fifo, got, want)
		}
	}
}

func TestBlocked(t *testing.T) {
	l := New(place.NewDims(), cpu(10), Queue{Name: "open"}, Queue{Name: "closed", Closed: true}, Queue{Name: "parent"},
		Queue{Name: "child", Parent: "parent"}, Queue{Name: "orphan", Parent: "nobody"},
		Queue{Name: "circle", Parent: "circle"})
	want := map[string]string{
		"open": "", "child": "", "closed": `queue "closed" is closed`, "orphan": `queue "orphan" is below queue "nobody", which does not exist`,
		"circle": `the queues above queue "circle" form a circle, or are too many`,
		"parent": `queue "parent" has queues below it; gangs belong into those`, "nowhere": `queue "nowhere" does not exist`,
	}
	got := map[string]string{}
	for name := range want {
		got[name] = ""
		if r := l.Blocked(name); r != nil {
			got[name] = r.Stable()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("blocked (-want +got):", diff)
	}
}

func class(t *testing.T, dims *place.Dims, cpus, gpus string) *place.Class {
	t.Helper()
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse(cpus), "example.com/gpu": resource.MustParse(gpus)}}}}}}
	c, err := place.NewClass(dims, p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAdmit(t *testing.T) {
	dims := place.NewDims()
	caps := func(pairs ...string) Limits {
		l := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return NewLimits(dims, l)
	}
	one, four, gpu := class(t, dims, "1", "0"), class(t, dims, "4", "0"), class(t, dims, "1", "1")
	for name, tc := range map[string]struct {
		queue, parent Limits
		held          int64
		gang          place.Gang
		counts        []int
		refusal       string
	}{
		"no limits":            {gang: place.Gang{Demands: []place.Demand{{Class: one, Count: 1000, Min: 1000}}}, counts: []int{1000}},
		"exactly at the limit": {queue: caps("cpu", "10"), held: 4, gang: place.Gang{Demands: []place.Demand{{Class: one, Count: 6, Min: 6}}}, counts: []int{6}},
		"the minimum is above the limit": {
			queue: caps("cpu", "10"), held: 5, gang: place.Gang{Demands: []place.Demand{{Class: one, Count: 6, Min: 6}}},
			refusal: `queue "q" may hold 10 of cpu, and 6 more do not fit; it holds 5`,
		},
		"a limit of the queue above": {
			parent: caps("cpu", "8"), held: 5, gang: place.Gang{Demands: []place.Demand{{Class: one, Count: 6, Min: 6}}},
			refusal: `queue "parent" may hold 8 of cpu, and 6 more do not fit; it holds 5`,
		},
		"a limit of nothing": {
			queue: caps("example.com/gpu", "0"), gang: place.Gang{Demands: []place.Demand{{Class: gpu, Count: 1, Min: 1}}},
			refusal: `queue "q" may hold 0 of example.com/gpu, and 1 more do not fit; it holds 0`,
		},
		"a limit on what is not asked for": {queue: caps("example.com/gpu", "0"), gang: place.Gang{Demands: []place.Demand{{Class: one, Count: 1, Min: 1}}}, counts: []int{1}},
		"above the minimum, as many as the limit allows": {
			queue: caps("cpu", "10"), held: 5, gang: place.Gang{Demands: []place.Demand{{Class: one, Count: 9, Min: 2}}}, counts: []int{5},
		},
		"several demands share what is left, in order": {
			queue: caps("cpu", "20"), gang: place.Gang{Demands: []place.Demand{{Class: four, Count: 9, Min: 1}, {Class: one, Count: 9, Min: 2}}}, counts: []int{4, 4},
		},
		"the gang's minimum is reached with small pods": {
			queue: caps("cpu", "10"), gang: place.Gang{MinMember: 6, Demands: []place.Demand{{Class: four, Count: 3, Min: 1}, {Class: one, Count: 6, Min: 0}}}, counts: []int{1, 6},
		},
		"the gang's minimum is above the limit": {
			queue: caps("cpu", "4"), gang: place.Gang{MinMember: 6, Demands: []place.Demand{{Class: one, Count: 8, Min: 1}}},
			refusal: `queue "q" may hold 4 of cpu, and 6 more do not fit; it holds 0`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(dims, cpu(100), Queue{Name: "parent", Capability: tc.parent}, Queue{Name: "q", Parent: "parent", Capability: tc.queue})
			l.Charge("q", cpu(tc.held))
			tc.gang.Queue = "q"
			asked := slices.Clone(tc.gang.Demands)
			got, refusal := l.Admit(tc.gang, false)
			if diff := cmp.Diff(len(asked), len(tc.gang.Demands)); diff != "" || !slices.Equal(asked, tc.gang.Demands) {
				t.Error("the gang handed in was changed")
			}
			if refusal != nil || tc.refusal != "" {
				if refusal == nil || refusal.Detail() != tc.refusal {
					t.Errorf("refusal %+v, want %q", refusal, tc.refusal)
				}
				return
			}
			var counts []int
			for _, d := range got.Demands {
				counts = append(counts, d.Count)
			}
			if diff := cmp.Diff(tc.counts, counts); diff != "" {
				t.Error("counts (-want +got):", diff)
			}
		})
	}
}

// TestNumbersOfJobs checks that a limit of jobs counts those of all queues below, and concerns only jobs
// that have no pods on nodes.
func TestNumbersOfJobs(t *testing.T) {
	l := New(place.NewDims(), cpu(100), Queue{Name: "team", JobsLimited: true, JobsMax: 3}, Queue{Name: "a", Parent: "team", JobsLimited: true, JobsMax: 2},
		Queue{Name: "b", Parent: "team"}, Queue{Name: Part("b", "ns"), Parent: "b", Of: "b"}, Queue{Name: "none", JobsLimited: true})
	admit := func(queue string, starts bool, want string) {
		t.Helper()
		_, refusal := l.Admit(place.Gang{Queue: queue}, starts)
		if got := ""; refusal != nil {
			got = refusal.Detail()
			if got != want {
				t.Errorf("%s: %q, want %q", queue, got, want)
			}
		} else if want != "" {
			t.Errorf("%s admits a job, want %q", queue, want)
		}
	}
	l.ChargeJobs("a", 1)
	l.ChargeJobs("b", 1)
	admit("a", true, "")
	l.ChargeJobs("a", 1)
	admit("a", true, `queue "a" may run 2 jobs at a time, and no more start; it runs 2`)
	admit("a", false, "")
	admit(Part("b", "ns"), true, `queue "team" may run 3 jobs at a time, and no more start; it runs 3`)
	admit("none", true, `queue "none" may run 0 jobs at a time, and no more start; it runs 0`)
	l.ChargeJobs("a", -1)
	admit(Part("b", "ns"), true, "")
}

func TestDeserved(t *testing.T) {
	for name, tc := range map[string]struct {
		queues []Queue
		asks   []int64 // by queue
		want   []int64
	}{
		"by weight when all want more":            {[]Queue{{Weight: 1}, {Weight: 3}}, []int64{100, 100}, []int64{25, 75}},
		"none gets more than it asks for":         {[]Queue{{Weight: 1}, {Weight: 3}}, []int64{100, 10}, []int64{90, 10}},
		"what is left is divided by weight again": {[]Queue{{Weight: 1}, {Weight: 1}, {Weight: 2}}, []int64{4, 100, 100}, []int64{4, 32, 64}},
		"none gets more than its capability":      {[]Queue{{Weight: 1, Capability: capability(5)}, {Weight: 1}}, []int64{100, 100}, []int64{5, 95}},
		"enough for all":                          {[]Queue{{Weight: 1}, {Weight: 9}}, []int64{20, 30}, []int64{20, 30}},
		"what is stated comes before weights": {[]Queue{{Weight: 1, Deserved: Limits(cpu(60))}, {Weight: 1}, {Weight: 1}},
			[]int64{100, 100, 100}, []int64{73, 13, 13}},
		"what is stated and not asked for is divided": {[]Queue{{Weight: 1, Deserved: Limits(cpu(60))}, {Weight: 1}}, []int64{20, 100}, []int64{20, 80}},
		"more is stated than there is":                {[]Queue{{Weight: 1, Deserved: Limits(cpu(150))}, {Weight: 9, Deserved: Limits(cpu(50))}}, []int64{200, 200}, []int64{75, 25}},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(place.NewDims(), cpu(100))
			for i, q := range tc.queues {
				q.Name = fmt.Sprint("q", i)
				l.SetQueue(q)
				waits(l, q.Name, q.Name, tc.asks[i], 0)
			}
			for i, want := range tc.want {
				f := l.Figures(fmt.Sprint("q", i))
				if f.Deserved[0]/1000 != want && (f.Deserved[0]+1)/1000 != want {
					t.Errorf("queue %d deserves %d, want %d", i, f.Deserved[0], 1000*want)
				}
			}
		})
	}
}

// TestDivisionIsMaxMinFair checks what queues deserve of a resource: all of it is given as far as
// there is demand, and by weight among the queues that want more.
func TestDivisionIsMaxMinFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := place.Vector{rapid.Int64Range(0, 1<<50).Draw(t, "total")}
		l := New(place.NewDims(), total)
		n := rapid.IntRange(1, 8).Draw(t, "queues")
		asks := make([]int64, n)
		weights := make([]int64, n)
		for i := range n {
			q := Queue{Name: fmt.Sprint("q", i), Weight: rapid.Int32Range(1, 65535).Draw(t, "weight")}
			asks[i], weights[i] = rapid.Int64Range(0, 1<<49).Draw(t, "asks"), int64(q.Weight)
			l.Submit(Gang{Key: q.Name, Queue: q.Name, Request: place.Vector{asks[i]}})
			if rapid.Bool().Draw(t, "capped") {
				q.Capability = Limits{rapid.Int64Range(0, 1<<49).Draw(t, "capability")}
				asks[i] = min(asks[i], q.Capability[0])
			}
			l.SetQueue(q)
		}
		var sum, want int64
		level := -1.0 // amount per weight that unsatisfied queues get
		for i := range n {
			d := l.Figures(fmt.Sprint("q", i)).Deserved[0]
			sum, want = sum+d, want+asks[i]
			if d > asks[i] {
				t.Fatalf("queue %d deserves %d, but asks for %d", i, d, asks[i])
			}
			if d == asks[i] {
				continue
			}
			perWeight := float64(d) / float64(weights[i])
			if level >= 0 && (perWeight-level > float64(n) || level-perWeight > float64(n)) {
				t.Fatalf("queue %d gets %f per weight, another %f", i, perWeight, level)
			}
			level = perWeight
		}
		if missing := min(total[0], want) - sum; missing < 0 || missing > int64(n) {
			t.Fatalf("%d of %d divided, %d asked for", sum, total[0], want)
		}
		for i := range n { // satisfied queues get no more per weight than the others
			d := l.Figures(fmt.Sprint("q", i)).Deserved[0]
			if perWeight := float64(d) / float64(weights[i]); level >= 0 && perWeight-level > float64(n) {
				t.Fatalf("queue %d gets %f per weight, though others want more than their %f", i, perWeight, level)
			}
		}
	})
}

// TestSumsAreConserved checks trees of queues after random changes: what a queue holds and asks for is
// its own and that of the queues below, and these divide no more than it deserves: all of it, as far
// as they ask for it and may have it.
func TestSumsAreConserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := place.Vector{rapid.Int64Range(0, 1000).Draw(t, "x"), rapid.Int64Range(0, 1000).Draw(t, "y")}
		l := New(place.NewDims(), total)
		names, parents := []string{Root}, map[string]string{}
		limits := map[string]Limits{}
		for i := range rapid.IntRange(1, 8).Draw(t, "queues") {
			q := Queue{Name: fmt.Sprint("q", i), Weight: rapid.Int32Range(1, 9).Draw(t, "weight"), Parent: rapid.SampledFrom(names).Draw(t, "parent")}
			if rapid.IntRange(0, 2).Draw(t, "capped") == 0 {
				q.Capability = Limits{rapid.Int64Range(0, 500).Draw(t, "capability")}
			}
			if rapid.IntRange(0, 2).Draw(t, "states") == 0 {
				q.Deserved = Limits{rapid.Int64Range(0, 500).Draw(t, "deserved")}
			}
			l.SetQueue(q)
			parents[q.Name], limits[q.Name] = q.Parent, q.Capability
			names = append(names, q.Name)
		}
		held, pending := map[string]place.Vector{}, map[string]place.Vector{} // of each queue alone
		for i := range rapid.IntRange(0, 30).Draw(t, "gangs") {
			q := rapid.SampledFrom(names[1:]).Draw(t, "queue")
			g := Gang{Key: fmt.Sprint(i), Queue: q, Request: place.Vector{rapid.Int64Range(0, 90).Draw(t, "x"), rapid.Int64Range(0, 90).Draw(t, "y")}}
			l.Submit(g)
			switch rapid.IntRange(0, 3).Draw(t, "what becomes of it") {
			case 0:
				l.Placed(g.Key, g.Request)
				held[q] = held[q].Plus(g.Request, 1)
			case 1:
				l.Remove(g.Key)
			case 2:
				l.Park(g.Key)
				pending[q] = pending[q].Plus(g.Request, 1)
			default:
				pending[q] = pending[q].Plus(g.Request, 1)
			}
			if rapid.Bool().Draw(t, "divide now") {
				l.Next()
			}
		}
		for _, name := range names {
			f := l.Figures(name)
			heldSum, pendingSum, deserved, wanted := held[name], pending[name], place.Vector(nil), place.Vector(nil)
			children := 0
			for child, parent := range parents {
				if parent != name {
					continue
				}
				children++
				c := l.Figures(child)
				heldSum, pendingSum, deserved = heldSum.Plus(c.Held, 1), pendingSum.Plus(c.Pending, 1), deserved.Plus(c.Deserved, 1)
				asks := place.Vector(nil).Plus(c.Held, 1).Plus(c.Pending, 1)
				for dim := range asks {
					if limit := limits[child].at(dim); limit != Unlimited {
						asks[dim] = min(asks[dim], limit)
					}
				}
				wanted = wanted.Plus(asks, 1)
			}
			if !same(f.Held, heldSum) || !same(f.Pending, pendingSum) {
				t.Fatalf("%s holds %v and asks for %v; the sums are %v and %v", name, f.Held, f.Pending, heldSum, pendingSum)
			}
			for dim := range total {
				missing := min(f.Deserved.At(dim), wanted.At(dim)) - deserved.At(dim)
				if children > 0 && (missing < 0 || missing > int64(children)) {
					t.Fatalf("the queues below %s deserve %v, it deserves %v, and they ask for %v", name, deserved, f.Deserved, wanted)
				}
			}
		}
		if f := l.Figures(Root); !same(f.Deserved, total) {
			t.Fatalf("the root deserves %v of %v", f.Deserved, total)
		}
	})
}

// TestSharing places gangs in their turn until nothing more fits. Capabilities hold, no gang that
// fits is left waiting, and queues that want more hold what their weight entitles them to, within
// the size of one gang.
func TestSharing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(20, 200).Draw(t, "total")
		dims := place.NewDims()
		l := New(dims, place.Vector{total})
		n := rapid.IntRange(1, 5).Draw(t, "queues")
		sizes, limits := make([]int64, n), make([]int64, n)
		for i := range n {
			q := Queue{Name: fmt.Sprint("q", i), Weight: rapid.Int32Range(1, 9).Draw(t, "weight"), FIFO: rapid.Bool().Draw(t, "fifo")}
			sizes[i], limits[i] = rapid.Int64Range(1, 9).Draw(t, "size"), 1<<40 // no limit
			if rapid.IntRange(0, 2).Draw(t, "capped") == 0 {
				limits[i] = rapid.Int64Range(0, total).Draw(t, "capability")
				q.Capability = Limits{limits[i]}
			}
			l.SetQueue(q)
			for g := range rapid.IntRange(0, 40).Draw(t, "gangs") {
				l.Submit(Gang{Key: fmt.Sprint(i, "/", g), Queue: q.Name, Created: epoch.Add(time.Duration(g)), Request: place.Vector{sizes[i]}})
			}
		}
		free, full := total, false
		wants := make([]bool, n) // queues with a gang that did not fit
		for {
			g, ok := l.Next()
			if !ok {
				break
			}
			i := int(g.Queue[1] - '0')
			_, refusal := l.Admit(place.Gang{Queue: g.Queue, Demands: []place.Demand{{Class: &place.Class{Request: g.Request}, Count: 1, Min: 1}}}, false)
			if over := l.Figures(g.Queue).Held.At(0)+sizes[i] > limits[i]; over != (refusal != nil) {
				t.Fatalf("%s: over capability %v, but %v", g.Key, over, refusal)
			}
			switch {
			case refusal == nil && sizes[i] <= free:
				free -= sizes[i]
				l.Placed(g.Key, g.Request)
			default:
				if refusal == nil && !full {
					full = true
					checkShares(t, l, sizes, limits)
				}
				wants[i] = true
				l.Park(g.Key)
			}
		}
		for i := range n {
			name := fmt.Sprint("q", i)
			held := l.Figures(name).Held.At(0)
			if held > limits[i] {
				t.Fatalf("%s holds %d, may hold %d", name, held, limits[i])
			}
			if waiting := l.Figures(name).Pending.At(0); waiting > 0 && sizes[i] <= free && held+sizes[i] <= limits[i] {
				t.Fatalf("%s waits for %d, though %d are free", name, waiting, free)
			}
		}
	})
}

// checkShares compares the queues at the moment when the first gang found the cluster full.
func checkShares(t *rapid.T, l *Ledger, sizes, limits []int64) {
	var names []string
	for i := range sizes {
		names = append(names, fmt.Sprint("q", i))
	}
	checkSharesOf(t, l, names, sizes, limits)
}

func checkSharesOf(t *rapid.T, l *Ledger, names []string, sizes, limits []int64) {
	for i := range sizes {
		for k := range sizes {
			a, b := l.Figures(names[i]), l.Figures(names[k])
			if b.Pending.At(0) == 0 || b.Held.At(0)+sizes[k] > limits[k] || a.Held.At(0) == 0 {
				continue // b wants nothing more, or may not have more
			}
			// When a had its last turn.
			before := float64(a.Held.At(0)-sizes[i]) / float64(a.Deserved.At(0))
			if before > b.Share+1e-9 && before < 1 {
				t.Fatalf("queue %d had %f of its share and was served before queue %d with %f", i, before, k, b.Share)
			}
		}
	}
}

// TestLedgerDependsOnlyOnTheFacts checks that a ledger, regardless of its history, answers like a
// new ledger that is given the same facts.
func TestLedgerDependsOnlyOnTheFacts(t *testing.T) {
	names := []string{"a", "b", "c", "d", Root, Part("a", "x"), Part("a", "y")}
	rapid.Check(t, func(t *rapid.T) {
		dims := place.NewDims()
		total := place.Vector{100, 100}
		l := New(dims, total)
		queues := map[string]Queue{}
		gangs, parked, held := map[string]Gang{}, map[string]bool{}, map[string]place.Vector{}
		jobs := map[string]int64{}
		key := func() string { return fmt.Sprint("g", rapid.IntRange(0, 9).Draw(t, "key")) }
		name := func() string { return rapid.SampledFrom(names).Draw(t, "queue") }
		vector := func() place.Vector {
			return place.Vector{rapid.Int64Range(0, 20).Draw(t, "x"), rapid.Int64Range(0, 20).Draw(t, "y")}
		}
		actions := map[string]func(){
			"set": func() {
				q := Queue{Name: name(), Parent: rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "parent"), Weight: rapid.Int32Range(1, 3).Draw(t, "weight"),
					Closed: rapid.IntRange(0, 4).Draw(t, "closed") == 0, FIFO: rapid.Bool().Draw(t, "fifo"), Priority: rapid.Int32Range(0, 1).Draw(t, "priority")}
				q.JobsLimited, q.JobsMax = rapid.Bool().Draw(t, "jobs limited"), rapid.Int64Range(0, 3).Draw(t, "jobs")
				if strings.HasPrefix(q.Name, PartPrefix) {
					q.Parent, q.Of = "a", "a"
				}
				queues[q.Name] = q
				l.SetQueue(q)
			},
			"remove queue": func() {
				n := name()
				delete(queues, n)
				l.RemoveQueue(n)
			},
			"submit": func() {
				g := Gang{Key: key(), Queue: name(), Priority: rapid.Int32Range(0, 2).Draw(t, "priority"), Resume: rapid.IntRange(0, 4).Draw(t, "resume") == 0, Request: vector()}
				gangs[g.Key], parked[g.Key] = g, false
				l.Submit(g)
			},
			"remove": func() {
				k := key()
				delete(gangs, k)
				l.Remove(k)
			},
			"park": func() {
				k := key()
				parked[k] = true
				l.Park(k)
			},
			"wake": func() {
				k := key()
				parked[k] = false
				l.Wake(k)
			},
			"charge": func() {
				n, v := name(), vector()
				held[n] = held[n].Plus(v, 1)
				l.Charge(n, v)
			},
			"jobs": func() {
				name, n := name(), rapid.Int64Range(0, 2).Draw(t, "jobs")
				jobs[name] += n
				l.ChargeJobs(name, n)
			},
			"place": func() {
				if g, ok := l.Next(); ok {
					held[g.Queue] = held[g.Queue].Plus(g.Request, 1)
					delete(gangs, g.Key)
					l.Placed(g.Key, g.Request)
				}
			},
		}
		var order []string
		for action := range actions {
			order = append(order, action)
		}
		slices.Sort(order)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			actions[rapid.SampledFrom(order).Draw(t, "action")]()
			fresh := New(dims, total)
			for _, q := range queues {
				fresh.SetQueue(q)
			}
			for n, v := range held {
				fresh.Charge(n, v)
			}
			for name, n := range jobs {
				fresh.ChargeJobs(name, n)
			}
			for k, g := range gangs {
				fresh.Submit(g)
				if parked[k] {
					fresh.Park(k)
				}
			}
			got, ok := l.Next()
			want, wantOK := fresh.Next()
			if ok != wantOK || got.Key != want.Key {
				t.Fatalf("next is %q, a new ledger says %q", got.Key, want.Key)
			}
			for _, n := range names {
				if got, want := l.Figures(n), fresh.Figures(n); got.Share != want.Share || !same(got.Held, want.Held) || !same(got.Pending, want.Pending) || !same(got.Deserved, want.Deserved) {
					t.Fatalf("queue %s: %+v, a new ledger says %+v", n, got, want)
				}
				if got, want := l.Blocked(n), fresh.Blocked(n); (got == nil) != (want == nil) || got != nil && got.Code != want.Code {
					t.Fatalf("queue %s: blocked %+v, a new ledger says %+v", n, got, want)
				}
				if _, known := queues[n]; !known {
					continue // it may still be known because of what it once held
				}
				_, got := l.Admit(place.Gang{Queue: n}, true)
				_, want := fresh.Admit(place.Gang{Queue: n}, true)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("queue %s admits another job, and a new ledger:\n%s", n, diff)
				}
			}
		}
	})
}

// same ignores zeros at the end of a vector.
func same(a, b place.Vector) bool {
	for dim := range max(len(a), len(b)) {
		if a.At(dim) != b.At(dim) {
			return false
		}
	}
	return true
}

// BenchmarkDrain drains 100,000 gangs from 10 or 1,000 queues, placing each in its turn.
func BenchmarkDrain(b *testing.B) {
	for _, queues := range []int{10, 1000} {
		b.Run(fmt.Sprint("queues=", queues), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l := New(place.NewDims(), cpu(1000))
				for q := range queues {
					l.SetQueue(Queue{Name: fmt.Sprint("q", q), Weight: int32(q%10 + 1)})
				}
				for g := range 100_000 {
					l.Submit(Gang{Key: fmt.Sprint(g), Queue: fmt.Sprint("q", g%queues), Created: epoch, Request: cpu(1)})
				}
				turns(l, 100_000)
			}
		})
	}
}
