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

// BenchmarkJudge judges 1,000 claims with rights to evict, each with a request and a number of pods of
// its own, that cannot be met: because the nodes are too small when all have left that may be evicted,
// because queues may lose no more than they have above what they deserve, and because pods of two
// classes do not fit together.
func BenchmarkJudge(b *testing.B) {
	for _, x := range []struct {
		name  string
		code  string
		claim func(s *State, c *Claim, dims *place.Dims)
	}{
		{"nodes", NotEnough, func(_ *State, c *Claim, _ *place.Dims) {
			c.Demands[0].Min = 100_001
		}},
		{"shares", NotFound, func(s *State, _ *Claim, dims *place.Dims) {
			for i := range 3 {
				s.Queues[i].Deserved = share.NewLimits(dims, list("cpu", "33000", "memory", "132000Gi"))
			}
		}},
		{"classes", NotEnough, func(_ *State, c *Claim, dims *place.Dims) {
			half, _ := place.NewClass(dims, template("cpu", "11"))
			c.Demands = append(c.Demands, place.Demand{Class: half, Min: 3_000})
			whole, _ := place.NewClass(dims, template("cpu", "20"))
			c.Demands = append(c.Demands, place.Demand{Class: whole, Min: 2_500})
			c.Demands[0].Min = 100
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			s, claim := fullCluster{size: 1, classes: 1}.build()
			dims := s.Nodes.Dims()
			claims := make([]Claim, 1000)
			for i := range claims {
				c := claim
				class, err := place.NewClass(dims, template("cpu", fmt.Sprint(1000+i, "m"), "memory", "2Gi"))
				if err != nil {
					b.Fatal(err)
				}
				c.Key, c.Priority = fmt.Sprint("claimant-", i), int32(100+i)
				c.Demands = []place.Demand{{Class: class, Min: 11_000 + i}}
				x.claim(s, &c, dims)
				for k := range c.Demands {
					c.Demands[k].Count = c.Demands[k].Min
				}
				claims[i] = c
			}
			f := New(s)
			b.ReportAllocs()
			before := cpuTime()
			for b.Loop() {
				clear(f.rights) // as in a search that is new
				clear(f.nodes.counted)
				for i := range claims {
					if p := f.Find(claims[i]); p.Refusal == nil || p.Refusal.Code != x.code {
						b.Fatal(p.Explain())
					}
				}
			}
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
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
