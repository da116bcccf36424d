package floor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/lab/drive"
)

// TestOrders checks the order of writes of one slot for two jobs of two pods, where each write is
// done before the next one. The slot of the client, if there is one, takes every other turn.
func TestOrders(t *testing.T) {
	for order, want := range map[Order]string{
		PodsFirst: "j0 p0.0 p0.1 j1 p1.0 p1.1 s0 s1",
		JobsFirst: "j0 j1 p0.0 p0.1 p1.0 p1.1 s0 s1",
		Apart:     "j0 p0.0 j1 p0.1 p1.0 p1.1 s0 s1",
	} {
		r := &run{load: &Load{items: []item{{pods: make([]corev1.Pod, 2)}, {pods: make([]corev1.Pod, 2)}}}, order: order, total: 4,
			progress: func(int) {}}
		r.created = append(r.created, nil, nil)
		r.change = sync.NewCond(&r.lock)
		got := ""
		turn := func(next func(context.Context) (write, bool)) bool {
			w, ok := next(t.Context())
			if !ok {
				return false
			}
			switch w.step {
			case createJob:
				got += fmt.Sprintf("j%d ", w.item)
			case createPod:
				got += fmt.Sprintf("p%d.%d ", w.item, w.pod)
			case writeStatus:
				got += fmt.Sprintf("s%d ", w.item)
			}
			r.done(w, true)
			return true
		}
		for more := true; more; {
			if order == Apart {
				turn(r.nextJob)
			}
			more = turn(r.next)
		}
		if got != want+" " {
			t.Errorf("%s: %s, want %s", order, got, want)
		}
		if r.written != 4 || r.lastPod.IsZero() || r.inFlight != 0 {
			t.Errorf("%s: %d written, the last at %v, %d in flight", order, r.written, r.lastPod, r.inFlight)
		}
	}
}

// TestStatusesWaitForAllPods checks that no status is written while pods are on their way.
func TestStatusesWaitForAllPods(t *testing.T) {
	r := &run{load: &Load{items: []item{{pods: make([]corev1.Pod, 2)}}}, order: PodsFirst, total: 2, progress: func(int) {},
		created: []drive.Object{nil}}
	r.change = sync.NewCond(&r.lock)
	take := func() write {
		w, ok := r.next(t.Context())
		if !ok {
			t.Fatal("nothing to write")
		}
		return w
	}
	r.done(take(), true)
	for _, w := range []write{take(), take()} {
		if next, ok := r.possible(); ok {
			t.Fatalf("%+v is written beside a pod", next)
		}
		r.done(w, true)
	}
	if w := take(); w.step != writeStatus {
		t.Errorf("%+v", w)
	}
}

func TestTheFastestOrderIsFirst(t *testing.T) {
	took := map[Order]time.Duration{PodsFirst: 3 * time.Second, JobsFirst: time.Second, Apart: 2 * time.Second}
	got, err := Rank(Orders(5), func(o Order) (int, time.Duration, error) { return 100, took[o], nil })
	if diff := cmp.Diff([]Order{JobsFirst, Apart, PodsFirst}, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	none := errors.New("none")
	if _, err := Rank(Orders(1), func(Order) (int, time.Duration, error) { return 0, 0, none }); !errors.Is(err, none) {
		t.Error(err)
	}
}

func TestBest(t *testing.T) {
	for sentence, c := range map[string]struct {
		tries    []float64
		measured float64
		want     int
	}{
		"the fastest try counts":                   {[]float64{3, 2, 4}, 5, 1},
		"a run that is as fast has a floor":        {[]float64{3, 2}, 2, 1},
		"a difference that no figure shows":        {[]float64{3, 2}, 1.991, 1},
		"a run that is faster has none":            {[]float64{3, 2}, 1.98, -1},
		"a run that is faster than one of two has": {[]float64{3, 2}, 2.5, 1},
		"no try": {nil, 1, -1},
	} {
		if got := Best(c.tries, c.measured); got != c.want {
			t.Errorf("%s: %d, want %d", sentence, got, c.want)
		}
	}
}
