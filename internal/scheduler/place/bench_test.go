package place

import (
	"fmt"
	"testing"
)

// BenchmarkLargeGang places one gang of 10,000 equal pods on 1,000 nodes.
func BenchmarkLargeGang(b *testing.B) {
	for _, strategy := range []Strategy{LeastAllocated, MostAllocated} {
		b.Run(fmt.Sprint("strategy=", strategy), func(b *testing.B) {
			c := newCluster().uniform(1000, "cpu", "32", "memory", "128Gi")
			g := c.gang(10_000, pod("cpu", "1", "memory", "1Gi"))
			b.ReportAllocs()
			for b.Loop() {
				p := NewPlacer(c.Snapshot, Options{Strategy: strategy})
				d := p.Place(g)
				if d.Shortage != nil {
					b.Fatal(d.Shortage.Detail())
				}
				b.StopTimer()
				p.Undo(g, d)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkManyGangs places 100,000 pods in 1,000 gangs, each of 5 demands of 20 pods, on 10,000
// nodes. Either the gangs share 5 classes, or each gang has 5 classes of its own.
func BenchmarkManyGangs(b *testing.B) {
	for _, strategy := range []Strategy{LeastAllocated, MostAllocated} {
		for _, own := range []bool{false, true} {
			b.Run(fmt.Sprintf("strategy=%d/own=%v", strategy, own), func(b *testing.B) {
				c := newCluster().uniform(10_000, "cpu", "32", "memory", "128Gi")
				gangs := make([]Gang, 1000)
				for i := range gangs {
					for k := range 5 {
						memory := 1024 * (k + 1)
						if own {
							memory += i
						}
						class := c.class(pod("cpu", fmt.Sprint(1+k%3), "memory", fmt.Sprintf("%dMi", memory)))
						gangs[i].Demands = append(gangs[i].Demands, Demand{Class: class, Count: 20, Min: 20})
					}
				}
				decisions := make([]Decision, len(gangs))
				b.ReportAllocs()
				for b.Loop() {
					p := NewPlacer(c.Snapshot, Options{Strategy: strategy})
					for i, g := range gangs {
						decisions[i] = p.Place(g)
						if decisions[i].Shortage != nil {
							b.Fatal(decisions[i].Shortage.Detail())
						}
					}
					b.StopTimer()
					for i, g := range gangs {
						p.Undo(g, decisions[i])
					}
					b.StartTimer()
				}
			})
		}
	}
}
