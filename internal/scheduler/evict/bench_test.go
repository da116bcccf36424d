package evict

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// fullCluster has 5,000 nodes full of 100,000 pods in 5,000 gangs of 20. The pods of a gang are on
// neighbouring nodes or scattered. Of elastic gangs every fifth pod is surplus.
type fullCluster struct {
	scattered, elastic bool
	// size is the number of victims' pods that one pod of the claimant is as large as.
	size int
	// classes is the number of demands of the claimant, of different sizes.
	classes int
}

func (o fullCluster) build() (*State, Claim) {
	const nodes, gangs, perGang = 5000, 5000, 20
	dims := place.NewDims()
	s := &State{Now: now, Nodes: place.NewSnapshot(dims), Rules: Rules{Preempt: true, PreemptAcross: true, Reclaim: true}}
	request, nonZero := dims.PodVector(template("cpu", "1", "memory", "4Gi"))
	queues := []string{"a", "b", "c"}
	for i := range gangs {
		g := Gang{Key: fmt.Sprintf("gang-%04d", i), Queue: queues[i%3], Priority: int32(i*7919%10) * 10, MinMember: perGang}
		if o.elastic {
			g.MinMember = perGang * 4 / 5
		}
		for k := range perGang {
			node := i + k
			if o.scattered {
				node = i + k*251
			}
			g.Pods = append(g.Pods, Pod{Name: types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("%s-%d", g.Key, k)},
				Node: fmt.Sprintf("node-%04d", node%nodes), Priority: g.Priority, Request: request, NonZero: nonZero,
				Started: now.Add(-time.Duration(i*104729%10_000) * time.Second)})
		}
		s.Gangs = append(s.Gangs, g)
	}
	for i := range nodes {
		n := &corev1.Node{}
		n.Name = fmt.Sprintf("node-%04d", i)
		all := dims.Vector(list("cpu", "20", "memory", "80Gi", "pods", "110"))
		s.Nodes.Set(place.Node{Name: n.Name, Object: n, Allocatable: all, Used: place.Vector(nil).Plus(request, 20),
			UsedNonZero: place.Vector(nil).Plus(nonZero, 20)})
	}
	for _, q := range queues {
		s.Queues = append(s.Queues, Queue{Name: q, Used: place.Vector(nil).Plus(request, 100_000/3)})
	}
	s.Queues = append(s.Queues, Queue{Name: "claimants", Deserved: share.NewLimits(dims, list("cpu", "50k"))})
	c := Claim{Gang: place.Gang{Key: "claimant", Queue: "claimants"}, Priority: 1000}
	for k := range o.classes {
		class, err := place.NewClass(dims, template("cpu", fmt.Sprint(o.size+k), "memory", fmt.Sprint(4*o.size+k, "Gi")))
		if err != nil {
			panic(err)
		}
		c.Demands = append(c.Demands, place.Demand{Class: class, Count: 1000 / o.classes, Min: 1000 / o.classes})
	}
	return s, c
}

// cpuTime returns the CPU time of the process. On a busy machine it says more than the wall time.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFind finds victims for a gang of 1,000 pods in a full cluster.
func BenchmarkFind(b *testing.B) {
	for _, o := range []fullCluster{
		{size: 1, classes: 1},
		{size: 1, classes: 1, scattered: true},
		{size: 1, classes: 1, elastic: true},
		{size: 4, classes: 1},
		{size: 4, classes: 1, scattered: true},
		{size: 20, classes: 1},
		{size: 1, classes: 3, scattered: true},
		{size: 4, classes: 3},
	} {
		name := fmt.Sprintf("size=%d/classes=%d/scattered=%v/elastic=%v", o.size, o.classes, o.scattered, o.elastic)
		b.Run(name, func(b *testing.B) {
			s, c := o.build()
			f := New(s)
			b.ReportAllocs()
			var p *Plan
			before := cpuTime()
			for b.Loop() {
				if p = f.Find(c); p.Refusal != nil {
					b.Fatal(p.Explain())
				}
			}
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(p.Cost.Gangs), "gangs")
			b.ReportMetric(float64(p.Cost.Pods), "pods")
		})
	}
}

// BenchmarkNew prepares a search in a full cluster.
func BenchmarkNew(b *testing.B) {
	s, _ := fullCluster{size: 1, classes: 1}.build()
	b.ReportAllocs()
	for b.Loop() {
		New(s)
	}
}

// BenchmarkRefuse judges a claim for which no pod may be evicted.
func BenchmarkRefuse(b *testing.B) {
	s, c := fullCluster{size: 1, classes: 1}.build()
	s.Rules = Rules{}
	f := New(s)
	b.ReportAllocs()
	for b.Loop() {
		if p := f.Find(c); p.Refusal == nil || p.Refusal.Code != NoVictims {
			b.Fatal(p.Explain())
		}
	}
}
