package share

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// TestWhoHasUsedLessIsNext has two teams of which one has used all of a cluster of 100 CPUs for a week.
// Nothing runs any more, and both have gangs of 10 CPUs.
func TestWhoHasUsedLessIsNext(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for name, c := range map[string]struct {
		halfLife  time.Duration
		busy      Queue
		later     time.Duration // since the week has ended
		wantFirst int           // gangs of the idle team that start before the first of the other one
	}{
		"by what they hold":                         {0, Queue{}, 0, 0},
		"by what they have used":                    {week, Queue{}, 0, 5},
		"a short half-life counts the week as more": {week / 10, Queue{}, 0, 10},
		"long ago":                              {week / 10, Queue{}, week, 1},
		"the busy team has twice the weight":    {week, Queue{Weight: 2}, 0, 3},
		"the busy team states what it deserves": {week, Queue{Deserved: Limits(cpu(10))}, 0, 0},
		"the busy team has a higher priority":   {week, Queue{Priority: 1}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(place.NewDims(), cpu(100))
			l.SetHalfLife(c.halfLife)
			now := epoch
			pass := func(d time.Duration) {
				now = now.Add(d)
				l.SetTime(now)
			}
			pass(0)
			c.busy.Name = "busy"
			l.SetQueue(c.busy)
			l.SetQueue(Queue{Name: "idle"})
			l.Charge("busy", cpu(100))
			pass(week)
			l.Charge("busy", place.Vector{-100_000})
			pass(c.later)
			for i := range 10 {
				waits(l, "busy", fmt.Sprint("busy", i), 10, i)
				waits(l, "idle", fmt.Sprint("idle", i), 10, i)
			}
			first := 0
			for range 10 {
				g, _ := l.Next()
				if g.Queue == "busy" {
					break
				}
				first++
				l.Placed(g.Key, g.Request)
			}
			if first != c.wantFirst {
				t.Errorf("%d gangs of the idle team come first, want %d", first, c.wantFirst)
			}
		})
	}
}

// TestUsageIsKept checks that what a part of a queue has used becomes its queue's when the part is removed,
// and that a ledger that is told the usage after a restart goes on with it.
func TestUsageIsKept(t *testing.T) {
	ledger := func() *Ledger {
		l := New(place.NewDims(), cpu(100))
		l.SetHalfLife(time.Hour)
		l.SetTime(epoch)
		l.SetQueue(Queue{Name: "q"})
		return l
	}
	l := ledger()
	part := Queue{Name: Part("q", "ns"), Parent: "q", Of: "q"}
	l.SetQueue(part)
	l.Charge(part.Name, cpu(8))
	l.SetTime(epoch.Add(time.Hour))
	l.Charge(part.Name, place.Vector{-6000})
	if got := l.Usage(part.Name); got[0] != 4000 || !l.Remembers(part.Name) || l.Remembers("q") {
		t.Errorf("the part has used %v; it is remembered: %v, its queue's own: %v", got, l.Remembers(part.Name), l.Remembers("q"))
	}
	// Another ledger is told at 2 h what was so at 1 h, and that the part holds 2 CPUs.
	again := ledger()
	again.SetQueue(part)
	again.SetTime(epoch.Add(2 * time.Hour))
	again.Charge(part.Name, cpu(2))
	again.Remember(part.Name, cpu(4), epoch.Add(time.Hour))
	l.SetTime(epoch.Add(2 * time.Hour))
	for name, l := range map[string]*Ledger{"the ledger": l, "another one": again} {
		if got := l.Usage(part.Name); got[0] != 3000 {
			t.Errorf("%s: used %v", name, got)
		}
		l.Charge(part.Name, place.Vector{-2000})
		l.RemoveQueue(part.Name)
		if got := l.Usage("q"); got[0] != 3000 {
			t.Errorf("%s: without its part the queue has used %v", name, got)
		}
	}
	// The clock of who wrote it was ahead.
	again.Remember("q", cpu(4), epoch.Add(5*time.Hour))
	again.SetTime(epoch.Add(3 * time.Hour))
	if got := again.Usage("q"); got[0] != 2000 {
		t.Errorf("one half-life later it has used %v", got)
	}
}

// TestUsageIsAnIntegral compares the usage of queues with the sum over the time for which they held each
// amount. It does not depend on when it was asked for, and what queues have used is what those below
// them have used together.
func TestUsageIsAnIntegral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		halfLife := time.Duration(rapid.Int64Range(1, 1000).Draw(t, "half-life")) * time.Minute
		names := []string{Root}
		parents := map[string]string{}
		var queues []Queue
		for i := range rapid.IntRange(1, 6).Draw(t, "queues") {
			q := Queue{Name: fmt.Sprint("q", i), Parent: rapid.SampledFrom(names).Draw(t, "parent")}
			names, queues, parents[q.Name] = append(names, q.Name), append(queues, q), q.Parent
		}
		ledger := func() *Ledger {
			l := New(place.NewDims(), place.Vector{1000})
			l.SetHalfLife(halfLife)
			l.SetTime(epoch)
			for _, q := range queues {
				l.SetQueue(q)
			}
			return l
		}
		often, once := ledger(), ledger()
		now := epoch
		type held struct {
			queue    string
			amount   int64
			from, to time.Time
		}
		var all []held
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 600).Draw(t, "passes")) * time.Minute)
			often.SetTime(now)
			if rapid.Bool().Draw(t, "ask") {
				often.Next()
				often.Usage(rapid.SampledFrom(names).Draw(t, "whom"))
			}
			if rapid.Bool().Draw(t, "nothing changes") {
				continue
			}
			once.SetTime(now)
			if i := rapid.IntRange(-1, len(all)-1).Draw(t, "ends"); i >= 0 && all[i].to.IsZero() {
				all[i].to = now
				often.Charge(all[i].queue, place.Vector{-all[i].amount})
				once.Charge(all[i].queue, place.Vector{-all[i].amount})
				continue
			}
			h := held{queue: rapid.SampledFrom(names[1:]).Draw(t, "queue"), amount: rapid.Int64Range(0, 1000).Draw(t, "amount"), from: now}
			all = append(all, h)
			often.Charge(h.queue, place.Vector{h.amount})
			once.Charge(h.queue, place.Vector{h.amount})
		}
		now = now.Add(time.Duration(rapid.Int64Range(0, 600).Draw(t, "passes")) * time.Minute)
		want := map[string]float64{}
		for _, h := range all {
			if h.to.IsZero() {
				h.to = now
			}
			kept := func(since time.Time) float64 { return math.Exp2(-float64(now.Sub(since)) / float64(halfLife)) }
			for name := h.queue; name != ""; name = parents[name] {
				want[name] += float64(h.amount) * (kept(h.to) - kept(h.from))
			}
		}
		for who, l := range map[string]*Ledger{"asked often": often, "asked once": once} {
			l.SetTime(now)
			l.Next()
			for _, name := range names {
				got := 0.0
				if sum := l.queues[name].past.sum; len(sum) > 0 {
					got = sum[0]
				}
				if math.Abs(got-want[name]) > 1e-6*(1+want[name]) {
					t.Fatalf("%s: %s has used %f, want %f", who, name, got, want[name])
				}
			}
		}
	})
}

// TestNobodyStarvesByUsage has queues with endless gangs of one CPU. Whatever they used before, each
// holds something again within ten half-lives, after which its usage is next to nothing, and the time in
// which a place becomes free for each queue before it.
func TestNobodyStarvesByUsage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const minute = time.Minute
		halfLife, longest := rapid.IntRange(1, 8).Draw(t, "half-life"), rapid.IntRange(1, 8).Draw(t, "longest")
		n := rapid.IntRange(2, 5).Draw(t, "queues")
		places := rapid.IntRange(1, 12).Draw(t, "places")
		l := New(place.NewDims(), cpu(int64(places)))
		l.SetHalfLife(time.Duration(halfLife) * minute)
		now := epoch
		l.SetTime(now)
		idle := make([]int, n) // minutes since the queue held something
		for i := range n {
			q := Queue{Name: fmt.Sprint("q", i), Weight: rapid.Int32Range(1, 9).Draw(t, "weight")}
			l.SetQueue(q)
			l.Remember(q.Name, cpu(rapid.Int64Range(0, int64(places)).Draw(t, "used before")), now)
		}
		key := 0
		submit := func(queue string) {
			waits(l, queue, fmt.Sprint(key), 1, key)
			key++
		}
		for i := range n {
			submit(fmt.Sprint("q", i))
		}
		type run struct {
			queue string
			left  int
		}
		var running []run
		bound := 10*halfLife + (n+1)*longest
		for range 2 * bound {
			now = now.Add(minute)
			l.SetTime(now)
			still := running[:0]
			for _, r := range running {
				if r.left--; r.left > 0 {
					still = append(still, r)
				} else {
					l.Charge(r.queue, place.Vector{-1000})
				}
			}
			running = still
			for len(running) < places {
				g, ok := l.Next()
				if !ok {
					t.Fatal("nobody is next")
				}
				l.Placed(g.Key, g.Request)
				running = append(running, run{g.Queue, rapid.IntRange(1, longest).Draw(t, "runs")})
				submit(g.Queue)
			}
			for i := range n {
				if idle[i]++; l.Figures(fmt.Sprint("q", i)).Held.At(0) > 0 {
					idle[i] = 0
				}
				if idle[i] > bound {
					t.Fatalf("queue %d has held nothing for %d minutes; the half-life is %d, and pods run for up to %d", i, idle[i], halfLife, longest)
				}
			}
		}
	})
}

// TestNamespacesShareAQueue places gangs of several users of one queue until nothing more fits, all of which
// are there from the beginning. Gangs of higher priority come first, whoever's they are. Among equals, users
// who want more hold equal amounts, within the size of one gang, and others what they want.
func TestNamespacesShareAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(10, 100).Draw(t, "total")
		l := New(place.NewDims(), place.Vector{total})
		l.SetQueue(Queue{Name: "q"})
		n := rapid.IntRange(1, 5).Draw(t, "users")
		priorities := rapid.Int32Range(0, 1).Draw(t, "priorities")
		sizes, limits, names := make([]int64, n), make([]int64, n), make([]string, n)
		for i := range n {
			names[i] = Part("q", fmt.Sprint("ns", i))
			sizes[i], limits[i] = rapid.Int64Range(1, 9).Draw(t, "size"), 1<<40
			l.SetQueue(Queue{Name: names[i], Parent: "q", Of: "q", FIFO: rapid.Bool().Draw(t, "fifo")})
			for g := range rapid.IntRange(0, 30).Draw(t, "gangs") {
				l.Submit(Gang{
					Key: fmt.Sprint(i, "/", g), Queue: names[i], Created: epoch.Add(time.Duration(g)), Request: place.Vector{sizes[i]},
					Priority: rapid.Int32Range(0, priorities).Draw(t, "priority"),
				})
			}
		}
		if why := l.Blocked("q"); why != nil {
			t.Fatalf("the queue is blocked: %s", why.Stable())
		}
		free, last := total, int32(math.MaxInt32)
		for {
			g, ok := l.Next()
			if !ok {
				break
			}
			if g.Priority > last {
				t.Fatalf("priority %d after %d", g.Priority, last)
			}
			last = g.Priority
			if g.Request[0] > free {
				if priorities == 0 {
					checkSharesOf(t, l, names, sizes, limits)
				}
				return
			}
			free -= g.Request[0]
			l.Placed(g.Key, g.Request)
		}
		if waiting := l.Figures("q").Pending.At(0); waiting != 0 {
			t.Fatalf("nothing is next, and gangs wait for %d", waiting)
		}
	})
}
