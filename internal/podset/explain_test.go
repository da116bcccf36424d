package podset_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/podsettest"
)

// statuses is a writer that keeps the statuses of pods until a test answers them.
type statuses struct {
	*podsettest.World
	pods []*corev1.Pod
	done []func(apiwriter.Object, error)
}

func (w *statuses) Status(_ apiwriter.Meta, o apiwriter.Object, _ bool, done func(apiwriter.Object, error)) {
	w.pods, w.done = append(w.pods, o.(*corev1.Pod)), append(w.done, done)
}

// TestPodsThatWaitSayWhy checks how often the condition of pods that wait for nodes is written.
func TestPodsThatWaitSayWhy(t *testing.T) {
	w := &statuses{World: podsettest.New(func(string, int) int { return 0 }, t.Fatalf)}
	g := newGang(w.World, 2, 2)
	g.set.Reset(&podset.Config{
		Scheduler: w, Model: w, Writer: w, Pods: w, Nodes: nodes{}, Rejected: rejected,
		Post: func(_ types.NamespacedName, _ types.UID, do func(*podset.Set) podset.Event) bool {
			g.inbox = append(g.inbox, do)
			return true
		},
		Window: 2, Clock: g.clock, Log: slog.New(slog.DiscardHandler),
	}, owner, "uid", "owner")
	g.set.Add(&g.group)
	g.group.BindLater = true
	g.ask()
	g.set.Pump()
	for w.Writes() > 0 {
		g.Step()
	}
	g.handle()
	explain := func(reason string, writes int) {
		t.Helper()
		before := len(w.pods)
		g.set.Explain(reason, "no room")
		if n := len(w.pods) - before; n != writes {
			t.Fatalf("%d statuses are written for the reason %s, want %d", n, reason, writes)
		}
	}
	answer := func(i int, err error) {
		if err == nil {
			g.Change(w.pods[i].Name, func(p *corev1.Pod) { p.Status = w.pods[i].Status })
		}
		w.done[i](w.pods[i], err)
		g.handle()
	}
	show := func() {
		g.Relist()
		g.handle()
	}
	explain("Unschedulable", 0) // the watch does not show the pods yet
	show()
	explain("Unschedulable", 2)
	c := w.pods[0].Status.Conditions[0]
	if got := fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason, " ", c.Message); got != "PodScheduled False Unschedulable no room" {
		t.Errorf("the condition is %s", got)
	}
	answer(0, nil)
	answer(1, errors.New("conflict"))
	explain("Unschedulable", 0) // not again before the watch shows another version of the second pod
	g.Change(w.pods[1].Name, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
	show()
	explain("Unschedulable", 1)
	answer(2, nil)
	explain("Unschedulable", 0)
	show()
	explain("Unschedulable", 0)
	//   Another reason is written after a pause.
	explain("QueueOverCapability", 0)
	g.clock.SetTime(g.clock.Now().Add(10 * time.Second))
	explain("QueueOverCapability", 2)
}
