package sandbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// crowd makes namespaces submit evaluations to a pool without end, on a simulated clock. No
// children are started: an evaluation is a duration, which counts as CPU time.
type crowd struct {
	pool  *Pool
	began atomic.Int64 // turns of the hostile namespaces
}

// turn runs one turn of a namespace, in place of Pool.do.
func (c *crowd) turn(ctx context.Context, name string, took time.Duration, began func()) error {
	r, err := c.pool.slots.acquire(ctx, name)
	if err != nil {
		return err
	}
	began()
	defer c.pool.slots.release(r)
	if took > slowAfter {
		time.Sleep(slowAfter)
		c.pool.slots.slowed(r)
		took -= slowAfter
	}
	time.Sleep(took)
	return nil
}

// TestNamespacesWithoutEndLeaveOthersTheirTurn counts the turns of hostile namespaces that begin
// while a cheap evaluation of another namespace waits. The clock is simulated.
func TestNamespacesWithoutEndLeaveOthersTheirTurn(t *testing.T) {
	const seed, cheap = 1, 5 * time.Millisecond
	for name, c := range map[string]struct {
		hostile, slots int
		cost           time.Duration // of a hostile evaluation, up to a tenth more
		// Duration of an evaluation of the canary, and the time between two.
		canary, every time.Duration
		// unknown: the canary has had no evaluation before the hostile namespaces came.
		unknown bool
		// busy is how long the canary has used all it could get beside one hostile namespace,
		// before the others came.
		busy time.Duration
		// Turns of others while the canary's first evaluation waits, and while each later one
		// waits.
		first, max int64
	}{
		"20 of expensive evaluations":                        {hostile: 20, slots: 2, cost: 2 * time.Second, canary: cheap, every: time.Second},
		"20, and a namespace that nothing is known of":       {hostile: 20, slots: 2, cost: 2 * time.Second, canary: cheap, every: time.Second, unknown: true, first: 20},
		"200 of expensive evaluations":                       {hostile: 200, slots: 2, cost: 2 * time.Second, canary: cheap, every: time.Second},
		"20, and the canary asks for nearly its share":       {hostile: 20, slots: 2, cost: 2 * time.Second, canary: 2 * cheap, every: 200 * time.Millisecond},
		"20 of evaluations just below what is slow":          {hostile: 20, slots: 4, cost: 90 * time.Millisecond, canary: cheap, every: time.Second},
		"20 that come when the canary has used more of late": {hostile: 20, slots: 4, cost: 2 * time.Second, canary: cheap, every: time.Second, busy: time.Minute, first: 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool, err := New(Config{Slots: c.slots, SlowSlots: 1})
				if err != nil {
					t.Fatal(err)
				}
				w := &crowd{pool: pool}
				if !c.unknown {
					if err := w.turn(t.Context(), "canary", c.canary, func() {}); err != nil {
						t.Fatal(err)
					}
				}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				for i := range c.hostile {
					if i == 1 && c.busy > 0 {
						w.use(t, "canary", c.busy)
					}
					for j := range 4 {
						running.Go(func() {
							random := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
							for ctx.Err() == nil {
								cost := c.cost + time.Duration(random.Int64N(int64(c.cost/10)))
								// An error means that it has waited for too long.
								_ = w.turn(ctx, fmt.Sprintf("hostile-%d", i), cost, func() { w.began.Add(1) })
							}
						})
					}
				}
				passed := make([]int64, 300) // for each evaluation of the canary
				longest := time.Duration(0)
				for i := range passed {
					synctest.Wait()
					before, arrived := w.began.Load(), time.Now()
					err := w.turn(t.Context(), "canary", c.canary, func() {
						passed[i], longest = w.began.Load()-before, max(longest, time.Since(arrived))
					})
					if err != nil {
						t.Errorf("cheap evaluation %d: %v, after %d turns of others", i, err, w.began.Load()-before)
						break
					}
					if most := max(c.max, c.first*int64(1-min(i, 1))); passed[i] > most {
						t.Errorf("%d turns of others began while the cheap evaluation %d waited; want at most %d", passed[i], i, most)
					}
					time.Sleep(c.every)
				}
				stop()
				running.Wait()
				t.Logf("of %d turns of others, %d began while the first cheap evaluation waited and at most %d while another did; one waited %s at most",
					w.began.Load(), passed[0], slices.Max(passed[1:]), longest)
			})
		})
	}
}

// use makes a namespace use all the time it can get, for d.
func (c *crowd) use(t *testing.T, name string, d time.Duration) {
	end := time.Now().Add(d)
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for time.Now().Before(end) {
				if err := c.turn(t.Context(), name, slowAfter*9/10, func() {}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
}

// TestASlowSlotThatIsFreeTakesAnotherSlowRequest checks that waiting requests get the slot of the
// first request that ends, in a slow slot or not.
func TestASlowSlotThatIsFreeTakesAnotherSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, err := New(Config{Slots: 2, SlowSlots: 1})
		if err != nil {
			t.Fatal(err)
		}
		w := &crowd{pool: pool}
		var running sync.WaitGroup
		for name, took := range map[string]time.Duration{"a": time.Second, "b": 3 * time.Second, "c": 3 * time.Second} {
			running.Go(func() {
				if name != "a" {
					time.Sleep(2 * slowAfter) // a is in the slow slot by then
				}
				if err := w.turn(t.Context(), name, took, func() {}); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(5 * slowAfter)
		arrived := time.Now()
		if err := w.turn(t.Context(), "canary", time.Millisecond, func() {
			if waited := time.Since(arrived); waited != time.Second-5*slowAfter {
				t.Errorf("it waited %s; the first slow request ended after %s", waited, time.Second-5*slowAfter)
			}
		}); err != nil {
			t.Error(err)
		}
		running.Wait()
		if pool.slots.running != 0 || pool.slots.slow != 0 {
			t.Errorf("%d running, %d slow", pool.slots.running, pool.slots.slow)
		}
	})
}
