package faults

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
)

// variants are the moments, relative to a write, at which the manager is killed.
var variants = []string{"before the server has the write", "before the answer", "after the answer"}

// sampled is the default number of crash points tried for each load. They are spread evenly over
// all crash points.
const sampled = 3

// TestKilledAtEveryWrite kills the manager at the N-th write of a small load, for each N, and
// checks that the next manager finishes the load.
func TestKilledAtEveryWrite(t *testing.T) {
	w := newWorld(t)
	only, points, failed := os.Getenv("LOCKSTEP_CRASH_LOAD"), 0, 0
	for _, l := range small {
		if only != "" && only != l.name {
			continue
		}
		r := w.refer(l)
		first, last, step := 1, r.writes, max(1, r.writes/sampled)
		if s := os.Getenv("LOCKSTEP_CRASH_POINTS"); s == "all" {
			step = 1
		} else if s != "" {
			if _, err := fmt.Sscanf(s, "%d-%d", &first, &last); err != nil {
				t.Fatalf("LOCKSTEP_CRASH_POINTS=%s: %v", s, err)
			}
			step = 1
		}
		t.Logf("load %s: %d writes without faults", l.name, r.writes)
		for n := first; n <= last; n += step {
			for v := range variants {
				if step > 1 && v != (n/step)%len(variants) {
					continue
				}
				began := time.Now()
				violations, reached := w.crash(l, r, n, v)
				violations = append(violations, w.disturbed()...)
				if reached {
					points++
				}
				if len(violations) > 0 {
					failed++
					t.Errorf("load %s, killed %s of write %d:\n%s", l.name, variants[v], n, strings.Join(violations, "\n"))
				}
				t.Logf("load %s, killed %s of write %d (reached: %v): %d violations, %s", l.name, variants[v], n, reached, len(violations),
					time.Since(began).Round(10*time.Millisecond))
			}
		}
	}
	w.restart()
	w.afterRestart()
	for _, v := range w.disturbed() {
		t.Error(v)
	}
	t.Logf("%d crash points, %d with violations", points, failed)
}

// afterRestart waits until a restarted manager has handled a new load of each kind, so that the
// manager has also handled everything it found at its start.
func (w *world) afterRestart() {
	w.Helper()
	for _, l := range small {
		w.refer(l)
	}
}

// crash tries one crash point: it kills the manager at the n-th write. reached reports whether the
// load had so many writes.
func (w *world) crash(l load, r reference, n, variant int) (violations []string, reached bool) {
	w.Helper()
	var writes atomic.Int64
	killed := make(chan struct{})
	kill := func() {
		if err := w.c.Kill(localcluster.Manager); err != nil {
			w.Error(err)
		}
		close(killed)
	}
	w.proxy.Decide(func(q *faultproxy.Request) (f faultproxy.Fault) {
		if !q.Write() || q.Resource == "leases" || !authoritative(q) || writes.Add(1) != int64(n) {
			return f
		}
		switch variant {
		case 0:
			f.Before = kill
		case 1:
			f.Done = kill
		case 2:
			f.Answered = kill
		}
		return f
	})
	defer w.proxy.Decide(nil)
	ups := w.ups()
	ns, then := w.submit(l)
	if why := then(); why != nil {
		return why, false
	}
	violations = w.finish(ns, r)
	select {
	case <-killed:
		w.awaitUp(ups + 1)
		reached = true
	default:
	}
	if len(violations) > 0 {
		violations = append(violations, w.story(ns))
	}
	return violations, reached
}

// authoritative reports whether a write changes an object. An access review is created but changes
// nothing.
func authoritative(q *faultproxy.Request) bool {
	return q.Group != "authorization.k8s.io" && q.Group != "authentication.k8s.io"
}
