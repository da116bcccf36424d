package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
)

const (
	// faultsMax is how long faults happen. They end earlier if the load is over.
	faultsMax = 6 * time.Second
	// darkMax is the longest time for which the server is unreachable. Every longDark-th seed has a
	// longer time, longLasts, which is longer than a lease.
	darkMax   = 2 * time.Second
	longDark  = 12
	longLasts = 13 * time.Second
	// worldSeeds is the number of seeds that share a control plane. Their objects stay, so that
	// later writes to them are noticed. More seeds would make each restarted manager read for long.
	worldSeeds = 40
	// seedsByDefault is the default number of seeds.
	seedsByDefault = 4
)

// TestRandomFaults runs the mixed load under the faults of a random seed, again and again. The seed
// fixes the kinds of faults and their probabilities. Which request meets which fault depends on the
// order of the requests.
func TestRandomFaults(t *testing.T) {
	seed, n := rand.Uint64N(1<<32), seedsByDefault
	number := func(env string, into func(uint64)) {
		if s := os.Getenv(env); s != "" {
			v, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				t.Fatalf("%s=%s: %v", env, s, err)
			}
			into(v)
		}
	}
	number("LOCKSTEP_FAULT_SEED", func(v uint64) { seed, n = v, 1 })
	number("LOCKSTEP_FAULT_SEEDS", func(v uint64) { n = int(v) })
	for first := 0; first < n; first += worldSeeds {
		t.Run(fmt.Sprintf("from-%d", seed+uint64(first)), func(t *testing.T) {
			seedsUnder(t, seed+uint64(first), min(worldSeeds, n-first))
		})
	}
}

// seedsUnder runs n seeds in a world of their own.
func seedsUnder(t *testing.T, seed uint64, n int) {
	w := newWorld(t)
	r := w.refer(mixed)
	failed, injected := 0, map[string]int{}
	for i := range n {
		began := time.Now()
		p := newPlan(seed + uint64(i))
		violations, faults := w.under(p, r)
		violations = append(violations, w.disturbed()...)
		if len(violations) > 0 {
			failed++
			t.Errorf("LOCKSTEP_FAULT_SEED=%d (%s; injected %v):\n%s", p.seed, p, faults, strings.Join(violations, "\n"))
		}
		for kind, times := range faults {
			injected[kind] += times
		}
		t.Logf("seed %d (%s): %d violations, %d faults, %s", p.seed, p, len(violations), sum(faults), time.Since(began).Round(10*time.Millisecond))
	}
	w.restart()
	w.afterRestart()
	for _, v := range w.disturbed() {
		t.Error(v)
	}
	t.Logf("%d seeds from %d on, %d with violations, %d managers ended; faults: %v", n, seed, failed, w.died, injected)
}

func sum(of map[string]int) (n int) {
	for _, v := range of {
		n += v
	}
	return n
}

// plan holds the faults that a seed produces.
type plan struct {
	seed uint64
	// rate is the share of requests that meet a fault. If only is set, the share is 0.5 for this
	// resource and a tenth of rate for all others. If nth > 0, every nth request meets a fault,
	// too.
	rate float64
	only string
	nth  int
	// watches is the share of watches that meet a fault.
	watches float64
	kinds   []string
	// darks, cuts and kills are times after the start.
	darks, cuts, kills []time.Duration
	dark               time.Duration

	mu  sync.Mutex
	rnd *rand.Rand
	n   int
}

var (
	kinds = []string{"reset stream", "reset connection", "half a body", "go away", "delay", "409", "410", "429", "500", "503", "504"}
	// victims are the resources on which some seeds concentrate the faults.
	victims = []string{"pods", "jobs/status", "workflows", "applications/status", "resourcetrackers", "configmaps", "leases", "applications", "jobs"}
)

func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &plan{seed: seed, rnd: r, rate: []float64{0.02, 0.05, 0.1, 0.2, 0.3}[r.IntN(5)], watches: []float64{0, 0.3, 0.7}[r.IntN(3)]}
	for _, k := range kinds {
		if r.IntN(2) == 0 {
			p.kinds = append(p.kinds, k)
		}
	}
	if len(p.kinds) == 0 {
		p.kinds = kinds
	}
	if r.IntN(3) == 0 {
		p.only = victims[r.IntN(len(victims))]
	}
	if r.IntN(6) == 0 {
		p.nth = 2 + r.IntN(6)
	}
	some := func(most int) (at []time.Duration) {
		for range r.IntN(most + 1) {
			at = append(at, time.Duration(r.Int64N(int64(faultsMax))))
		}
		return at
	}
	p.darks, p.cuts, p.kills = some(1), some(3), some(2)
	p.dark = time.Duration(r.Int64N(int64(darkMax)))
	if seed%longDark == 0 {
		p.darks, p.dark = []time.Duration{time.Duration(r.Int64N(int64(3 * time.Second)))}, longLasts
	}
	return p
}

func (p *plan) String() string {
	return fmt.Sprintf("rate %.2f only %q nth %d watches %.1f kinds %s dark %d×%s cuts %d kills %d", p.rate, p.only, p.nth, p.watches,
		strings.Join(p.kinds, ","), len(p.darks), p.dark.Round(time.Millisecond), len(p.cuts), len(p.kills))
}

// decide returns the fault of a request.
func (p *plan) decide(q *faultproxy.Request) (f faultproxy.Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rnd
	up := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	if q.Verb == "watch" {
		if r.Float64() >= p.watches {
			return f
		}
		switch r.IntN(5) {
		case 0:
			f.Watch.FreezeAfter, f.Watch.FreezeFor = up(time.Second), up(2*time.Second)
		case 1:
			f.Watch.EndAfter = up(2 * time.Second)
		case 2:
			f.Watch.EndAfter, f.Watch.Torn = up(2*time.Second), true
		case 3:
			f.Watch.FreezeAfter, f.Watch.FreezeFor, f.Watch.EndAfter = 0, up(time.Second), time.Second+up(time.Second)
		case 4:
			f.Watch.Expired = true
		}
		return f
	}
	p.n++
	rate := p.rate
	if p.only != "" {
		rate = p.rate / 10
		if q.Resource == p.only {
			rate = 0.5
		}
	}
	if !(r.Float64() < rate) && (p.nth == 0 || p.n%p.nth != 0) {
		return f
	}
	f.Worked = r.IntN(2) == 0
	switch kind := p.kinds[r.IntN(len(p.kinds))]; kind {
	case "reset stream":
		f.Lose = faultproxy.ResetStream
	case "reset connection":
		f.Lose = faultproxy.ResetConnection
	case "half a body":
		f.Lose = faultproxy.HalfBody
	case "go away":
		f.GoAway = true
	case "delay":
		f.Delay = up(time.Second)
	case "410":
		if q.Verb == "list" {
			f.Answer, f.Worked = 410, false
		}
	case "409":
		// The server never answers a read, or a create of an object with a name, with a conflict.
		if q.Verb == "update" || q.Verb == "patch" || q.Verb == "delete" {
			f.Answer = 409
		}
	default:
		f.Answer, _ = strconv.Atoi(kind)
		if f.Answer == 429 {
			f.RetryAfter = "1"
		}
	}
	return f
}

// under runs the mixed load under a plan's faults.
func (w *world) under(p *plan, r reference) (violations []string, faults map[string]int) {
	w.Helper()
	before := w.proxy.Faults()
	w.proxy.Decide(p.decide)
	stop := make(chan struct{})
	var acting sync.WaitGroup
	at := func(moments []time.Duration, act func()) {
		for _, d := range moments {
			acting.Go(func() {
				select {
				case <-time.After(d):
					act()
				case <-stop:
				}
			})
		}
	}
	at(p.darks, func() { w.proxy.Dark(p.dark) })
	at(p.cuts, w.proxy.Cut)
	at(p.kills, func() { _ = w.c.Kill(localcluster.Manager) }) // it may not run at the moment
	over := make(chan struct{})
	acting.Go(func() {
		select {
		case <-time.After(faultsMax):
		case <-over:
		}
		w.proxy.Decide(nil)
	})
	ns, then := w.submit(mixed)
	if violations = then(); violations == nil {
		violations = w.finish(ns, r)
	}
	if len(violations) > 0 {
		violations = append(violations, w.story(ns))
	}
	close(over)
	close(stop)
	acting.Wait()
	w.proxy.Dark(0)
	faults = map[string]int{}
	for kind, n := range w.proxy.Faults() {
		if n -= before[kind]; n > 0 {
			faults[kind] = n
		}
	}
	return violations, faults
}
