package allocate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// podOf returns a pod of one container with its own CPUs.
func podOf(cpus int) *request.Pod {
	return &request.Pod{Containers: []request.Container{{Name: "c", CPUs: cpus, Policy: request.Policy{Share: 1}}}}
}

// exclusive returns the request of such a pod.
func exclusive(tb testing.TB, cpus int) *Request {
	r, err := NewRequest(podOf(cpus))
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// loadedNodes returns nodes at 85 % load that have seen pods come and go, each node on its own.
func loadedNodes(tb testing.TB, m machines.Machine, count int, sizes []int) []*Node {
	l, err := NewLayout(m.MustTopology(), cpuset.Set{})
	if err != nil {
		tb.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var al Allocator
	nodes := make([]*Node, count)
	var requests []*Request
	for _, s := range sizes {
		requests = append(requests, exclusive(tb, s))
	}
	for i := range nodes {
		n := NewNode(fmt.Sprintf("node-%d", i), l)
		for round := range 3 {
			for k := 0; n.totalIdle > len(l.cpus)*15/100; k++ {
				if _, err := al.Allocate(n, fmt.Sprintf("%d/%d", round, k), requests[rng.IntN(len(requests))]); err != nil && n.totalIdle < 32 {
					break
				}
			}
			if round < 2 {
				for _, a := range n.Pods() {
					if rng.IntN(2) == 0 {
						n.Release(a.Key)
					}
				}
			}
		}
		nodes[i] = n
	}
	return nodes
}

// BenchmarkChoose measures one decision (node and CPUs) over many nodes of 256 CPUs at 85 % load.
func BenchmarkChoose(b *testing.B) {
	for _, m := range []machines.Machine{machines.AMD256NPS1, machines.AMD256NPS4} {
		for _, count := range []int{1000, 5000} {
			for _, c := range []struct {
				name          string
				cold, repacks bool
			}{{"as-installed", false, true}, {"without-moves", false, false}, {"without-moves/nothing-remembered", true, false}} {
				b.Run(fmt.Sprintf("%s/%d/%s", m.Name, count, c.name), func(b *testing.B) {
					nodes := loadedNodes(b, m, count, []int{1, 2, 3, 4, 4, 6, 8, 12, 16, 24})
					var requests []*Request
					for _, s := range []int{1, 2, 4, 8, 12, 16, 32, 48, 64} {
						requests = append(requests, exclusive(b, s))
					}
					al := Allocator{Repacks: c.repacks}
					var took []time.Duration
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						if c.cold {
							clear(al.known)
						}
						start := time.Now()
						at, _, err := al.Place(nodes, "bench", requests[i%len(requests)], nil)
						took = append(took, time.Since(start))
						if err == nil {
							nodes[at].Release("bench")
						}
					}
					report(b, took)
				})
			}
		}
	}
}

// BenchmarkAllocate measures the choice of CPUs on one node.
func BenchmarkAllocate(b *testing.B) {
	for _, m := range []machines.Machine{machines.AMD256NPS1, machines.AMD256NPS4, machines.Intel104, machines.Hybrid} {
		for _, size := range []int{4, 16} {
			b.Run(fmt.Sprintf("%s/%d", m.Name, size), func(b *testing.B) {
				nodes := loadedNodes(b, m, 20, []int{1, 2, 3, 4, 4, 6, 8})
				r := exclusive(b, size)
				var al Allocator
				var took []time.Duration
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					n := nodes[i%len(nodes)]
					start := time.Now()
					_, err := al.Allocate(n, "bench", r)
					took = append(took, time.Since(start))
					if err == nil {
						n.Release("bench")
					}
				}
				report(b, took)
			})
		}
	}
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Nanoseconds())/1e3, "max-µs")
}

// BenchmarkManyNUMANodes measures the choice of CPUs on one node of 64 NUMA nodes and 1,024 CPUs, at
// half and at 85 % load, for pods that need several NUMA nodes.
func BenchmarkManyNUMANodes(b *testing.B) {
	flat := numaMachine(1, 64, 8)
	for _, m := range []machines.Machine{numaMachine(8, 8, 8), flat, numaMachine(2, 32, 8)} {
		for _, c := range []struct {
			name   string
			idle   int
			policy request.Policy
		}{{"idle", 100, request.Policy{}}, {"half", 50, request.Policy{}}, {"85%", 15, request.Policy{}},
			{"half/local-memory", 50, request.Policy{Memory: request.LocalMemory}}, {"half/shared", 50, request.Policy{}}} {
			b.Run(m.Name+"/"+c.name, func(b *testing.B) {
				n := loadedNodes(b, m, 1, []int{1, 2, 3, 4, 4, 6, 8, 12, 16, 24})[0]
				for _, a := range n.Pods() {
					if n.totalIdle < 1024*c.idle/100 {
						n.Release(a.Key)
					}
				}
				var requests []*Request
				for size := 17; size <= n.totalIdle; size += 1 + size/7 {
					one := own(size, c.policy)
					one.MemoryBytes = int64(size) << 30
					if c.name == "half/shared" {
						one.Policy.Share = 0
					}
					requests = append(requests, prepared(b, one))
				}
				var al Allocator
				var took []time.Duration
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					start := time.Now()
					_, err := al.Allocate(n, "bench", requests[i%len(requests)])
					took = append(took, time.Since(start))
					if err == nil {
						n.Release("bench")
					}
				}
				report(b, took)
			})
		}
	}
}
