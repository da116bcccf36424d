package controller

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/podsettest"
)

// lagging is a writer that reports a fixed latency. No other method of it is called.
type lagging struct {
	apiwriter.Writer
	lag time.Duration
}

func (l lagging) Latency() time.Duration { return l.lag }

func TestWhenAWorkflowIsFirstShown(t *testing.T) {
	begun := time.Now()
	const s = time.Second
	at := func(after time.Duration) time.Time { return begun.Add(after) }
	one := map[string]*nodePod{"a": {}}
	for name, c := range map[string]struct {
		lag  time.Duration
		r    *record
		want time.Duration // after the change
	}{
		"it has no pods":                     {0, &record{}, 2 * s},
		"it waits for a user":                {0, &record{nodePods: one, pauses: map[string]bool{"p": true}}, 2 * s},
		"it waits for room":                  {0, &record{nodePods: one}, 5 * s},
		"its pod is being written":           {0, writing(1, &record{}), 20 * s},
		"its pod was written":                {0, &record{nodePods: one, created: at(s)}, 6 * s},
		"its pod was written late":           {0, &record{nodePods: one, created: at(18 * s)}, 20 * s},
		"its pod runs":                       {0, &record{nodePods: one, running: 1, created: at(s), ran: at(2 * s)}, 4 * s},
		"its pod runs late":                  {0, &record{nodePods: one, running: 1, created: at(20 * s), ran: at(25 * s)}, 27 * s},
		"some run, and others are written":   {0, writing(9, &record{running: 1, created: at(3 * s), ran: at(2 * s)}), 4 * s},
		"its pod runs, the server is busy":   {200 * time.Millisecond, &record{nodePods: one, running: 1, ran: at(s)}, 9 * s},
		"it waits for room, server is busy":  {200 * time.Millisecond, &record{nodePods: one}, 8 * s},
		"it waits, and the server is stuck":  {time.Minute, &record{nodePods: one}, 20 * s},
		"its pod ran, and another is placed": {0, writing(1, &record{created: at(4 * s), ran: at(2 * s)}), 4 * s},
	} {
		c.r.next.since = begun
		controller := &Controller{Config: Config{Writer: lagging{lag: c.lag}}}
		if got := controller.due(c.r).Sub(begun); got != c.want {
			t.Errorf("%s: shown after %v, want %v", name, got, c.want)
		}
	}
}

// writing returns r with n pods at the writer.
func writing(n int, r *record) *record {
	r.nodePods = map[string]*nodePod{}
	r.pods.Reset(&podset.Config{Writer: podsettest.New(nil, nil)}, types.NamespacedName{}, "uid", "owner")
	for i := range n {
		name := strconv.Itoa(i)
		p := r.addPod(name, name, nil)
		p.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.pods.Create(p.ref())
	}
	r.pods.Pump()
	return r
}
