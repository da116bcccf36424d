package scheduler

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/cluster"
)

// runner is an owner whose pods end as soon as they are placed, which makes room for the next pods.
type runner struct {
	model *cluster.Cluster
	mu    sync.Mutex
	left  int
	done  chan struct{}
	ended chan *corev1.Pod
}

func (o *runner) Commit(g *Gang, placed []Assignment) {
	for _, a := range placed {
		o.ended <- bound(g, a)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left -= len(placed); o.left == 0 {
		close(o.done)
	}
}

func (o *runner) Waiting(*Gang, Reason) {}

// TestEveryGangGetsItsTurnWhileOthersComeAndGo submits and ends, in several goroutines, ten times
// the pods that the cluster holds. All gangs get their turn although only events wake the
// scheduler.
func TestEveryGangGetsItsTurnWhileOthersComeAndGo(t *testing.T) {
	const gangs, nodes = 400, 5
	model := cluster.New(cluster.Config{Ours: func(*corev1.Pod) bool { return true }})
	s, err := New(Config{Cluster: model, RetryEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	model.UpsertQueue(queue("default", nil))
	w := &world{Scheduler: s, t: t}
	for i := range nodes {
		w.node(fmt.Sprint("n", i), "4")
	}
	o := &runner{model: model, done: make(chan struct{}), ended: make(chan *corev1.Pod, gangs*4)}
	batches := make([][]*Gang, 4)
	for i := range gangs {
		n := 1 + i%4
		g := &Gang{Key: fmt.Sprint("g", i), Queue: "default", MinMember: n, Owner: o}
		d := Demand{Template: template("1"), Min: n}
		for k := range n {
			d.Units = append(d.Units, types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(g.Key, "-", k)})
		}
		g.Demands = []Demand{d}
		o.left += n
		batches[i%4] = append(batches[i%4], g)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { s.Run(ctx) })
	for _, batch := range batches {
		all.Go(func() {
			for _, g := range batch {
				s.Submit(g)
			}
		})
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case p := <-o.ended:
					model.UpsertPod(p)
					model.DeletePod(p)
				}
			}
		})
	}
	select {
	case <-o.done:
	case <-time.After(60 * time.Second):
		t.Errorf("%d pods have not been placed", o.left)
	}
	cancel()
	all.Wait()
}
