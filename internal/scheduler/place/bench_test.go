package place

import (
	"fmt"
	"testing"

	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	"lockstep.dev/lockstep/internal/scheduler/network"
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

// halls adds 10,000 nodes of 8 GPUs and their network of 4 tiers: 8 nodes at a switch, 5 switches in a
// rack, 10 racks in a row, and 25 rows in a hall.
func halls() (cluster, *network.Tree) {
	c := newCluster()
	hypers := []*hypernodev1alpha1.HyperNode{hyper("hall", 4)}
	join := func(parent int, name string, tier int) int {
		hypers = append(hypers, hyper(name, tier))
		hypers[parent].Spec.Members = append(hypers[parent].Spec.Members, hyper("", 0, ":"+name).Spec.Members...)
		return len(hypers) - 1
	}
	for r := range 25 {
		row := join(0, fmt.Sprintf("row-%d", r), 3)
		for k := range 10 {
			rack := join(row, fmt.Sprintf("rack-%d-%d", r, k), 2)
			for s := range 5 {
				at := join(rack, fmt.Sprintf("switch-%d-%d-%d", r, k, s), 1)
				for n := range 8 {
					name := fmt.Sprintf("node-%d-%d-%d-%d", r, k, s, n)
					c.node(name, "cpu", "96", "memory", "1Ti", "example.com/gpu", "8")
					hypers[at].Spec.Members = append(hypers[at].Spec.Members, hyper("", 0, name).Spec.Members...)
				}
			}
		}
	}
	return c, c.tree(hypers...)
}

// BenchmarkNear places a gang of 1,000 pods of one GPU near each other: 10,000 nodes, 4 tiers. The
// tree is known, as it is between changes of nodes; with fresh, the placer is new.
func BenchmarkNear(b *testing.B) {
	c, tree := halls()
	for _, mode := range []string{"hard", "soft"} {
		for _, fresh := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/fresh=%v", mode, fresh), func(b *testing.B) {
				g := c.gang(1000, pod("cpu", "8", "memory", "64Gi", "example.com/gpu", "1"))
				g.Near = &Near{Hard: mode == "hard", HighestTier: 3}
				p := NewPlacer(c.Snapshot, Options{Network: tree})
				b.ReportAllocs()
				for b.Loop() {
					if fresh {
						p = NewPlacer(c.Snapshot, Options{Network: tree})
					}
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
}
