package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/cputopology/machines"
)

// BenchmarkPinned measures one decision of the scheduler for a pod that asks for CPUs, from Submit
// to Commit: queue, refresh of the view, node, CPUs and annotation. The nodes have 256 CPUs, are at
// 85 % load and have seen pods come and go.
func BenchmarkPinned(b *testing.B) {
	for _, m := range []machines.Machine{machines.AMD256NPS1, machines.AMD256NPS4} {
		for _, nodes := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("%s/%d", m.Name, nodes), func(b *testing.B) {
				w := worldOf(b, Config{CPUsRepacked: true})
				w.writes = true
				w.cfg.CyclePods = 1 << 30
				for i := range nodes {
					name := fmt.Sprintf("node-%04d", i)
					w.node(name, "256")
					w.cluster.UpsertNodeTopology(topology(name, m))
				}
				rng := rand.New(rand.NewPCG(1, 2))
				var sizes []*corev1.Pod
				for _, n := range []int{1, 2, 3, 4, 4, 6, 8, 12, 16, 24} {
					p := asks(fmt.Sprint(n), own+"true")
					sizes = append(sizes, p)
				}
				// 1. Fill, remove half, fill again.
				serial := 0
				for load := 0; load < nodes*256*85/100; {
					n := rng.IntN(len(sizes))
					count := 50
					cpus := sizes[n].Spec.Containers[0].Resources.Limits.Cpu().Value()
					serial++
					w.Submit(w.gangOf(fmt.Sprint("g", serial), count, sizes[n]))
					load += count * int(cpus)
					if serial%100 == 0 {
						w.run()
					}
				}
				w.run()
				for key := range w.on {
					if rng.IntN(4) == 0 {
						for _, a := range w.on[key] {
							w.cluster.DeletePod(bound(w.started[key], a))
						}
						delete(w.on, key)
						serial++
						w.Submit(w.gangOf(fmt.Sprint("again", serial), 50, w.started[key].Demands[0].Template))
					}
				}
				w.run()
				// 2. One pod at a time.
				took := make([]time.Duration, 0, b.N)
				for i := 0; b.Loop(); i++ {
					key := fmt.Sprint("one", i)
					g := w.gangOf(key, 1, sizes[i%len(sizes)])
					start := time.Now()
					w.Submit(g)
					w.run()
					took = append(took, time.Since(start))
					if len(w.on[key]) != 1 {
						b.Fatalf("%s was not placed: %s", key, w.heard())
					}
					w.cluster.DeletePod(bound(g, w.on[key][0]))
					delete(w.on, key)
					delete(w.started, key)
					w.said = w.said[:0]
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			})
		}
	}
}
