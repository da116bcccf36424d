package scheduler

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockstep.dev/lockstep/internal/scheduler/evict"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/usage"
)

// balancing is one search for pods to be moved from nodes that are used much to others.
type balancing struct {
	s       *Scheduler
	balance *usage.Balance
	loads   map[string]usage.Load // of the nodes whose use is known
	low     []string              // nodes that get pods, sorted
	got     map[string]place.Vector
}

// rebalance has pods evicted from nodes that are used much, if a node that is used little takes them.
func (d *standings) rebalance() {
	now := d.s.clock.Now()
	if d.usage == nil || d.usage.Balance == nil || now.Before(d.nextMove) {
		return
	}
	d.nextMove = now.Add(d.usage.Balance.Every)
	if d.s.evictions.cfg.Mode == EvictionOff {
		return
	}
	d.s.refresh()
	b := d.balancing(now)
	if len(b.low) == 0 || !slices.ContainsFunc(slices.Collect(maps.Values(b.loads)), d.usage.Balance.IsHigh) {
		return
	}
	moved := d.s.evictions.depart(func(state *evict.State) []evict.Victim {
		return evict.Spare(state, evict.Moved, usage.MovesMax, b.moves)
	})
	if moved {
		d.moved = now
	}
}

// balancing returns the loads of the nodes that were measured since pods were last moved.
func (d *standings) balancing(now time.Time) *balancing {
	b := &balancing{s: d.s, balance: d.usage.Balance, loads: map[string]usage.Load{}, got: map[string]place.Vector{}}
	d.mu.Lock()
	used := d.used
	d.mu.Unlock()
	for _, n := range d.s.view.All() {
		u, known := used[n.Name]
		if !known || !d.usage.Fresh(u, now) || !u.At.After(d.moved) {
			continue
		}
		load := usage.Load{CPU: u.CPU, Memory: u.Memory, Pods: part(n.Used, n, place.Pods)}
		b.loads[n.Name] = load
		if b.balance.IsLow(load) {
			b.low = append(b.low, n.Name)
		}
	}
	slices.Sort(b.low)
	return b
}

// part returns an amount as a percentage of what a node has of a resource.
func part(amount place.Vector, n *place.Node, dim int) float64 {
	if n.Allocatable[dim] <= 0 {
		return 0
	}
	return 100 * float64(amount.At(dim)) / float64(n.Allocatable[dim])
}

// loadOf returns what a pod adds to the load of a node: its requests stand for its use.
func loadOf(p *evict.Pod, n *place.Node) usage.Load {
	return usage.Load{
		CPU: part(p.NonZero, n, place.CPU), Memory: part(p.NonZero, n, place.Memory), Pods: part(p.Request, n, place.Pods),
	}
}

// moves reports whether a pod is moved. If so, it is counted on the node that it may go to.
func (b *balancing) moves(g *evict.Gang, p *evict.Pod) bool {
	load, known := b.loads[p.Node]
	object := b.s.evictions.roster.object(p.Node, p.Name)
	i, found := b.s.view.Index(p.Node)
	if !known || !found || object == nil || !b.balance.IsHigh(load) || !b.selects(g, p, object) {
		return false
	}
	sheds := loadOf(p, b.s.view.Node(i))
	if !b.balance.Helps(load, sheds) {
		return false
	}
	class := b.class(object)
	if class == nil {
		return false
	}
	for _, name := range b.low {
		i, _ := b.s.view.Index(name)
		n := b.s.view.Node(i)
		after := b.loads[name].Plus(loadOf(p, n), 1)
		if b.balance.IsHigh(after) || !class.Admits(n) || !b.hasRoom(n, class) {
			continue
		}
		b.loads[name], b.loads[p.Node] = after, load.Plus(sheds, -1)
		b.got[name] = b.got[name].Plus(class.Request, 1)
		return true
	}
	return false
}

// selects reports whether the configuration lets a pod be moved.
func (b *balancing) selects(g *evict.Gang, p *evict.Pod, object *corev1.Pod) bool {
	return (p.Preemptable || !b.balance.OnlyPreemptable) && (len(b.balance.Queues) == 0 || slices.Contains(b.balance.Queues, g.Queue)) &&
		labels.SelectorFromSet(b.balance.Labels).Matches(labels.Set(object.Labels))
}

// class returns the class of a pod that could be placed anew, or nil if more than free resources
// decides where it can go.
func (b *balancing) class(object *corev1.Pod) *place.Class {
	anew := *object
	anew.Spec.NodeName = ""
	class, err := place.NewClass(b.s.cluster.Dims(), &anew)
	if err != nil || class.Rare || len(class.Ports) > 0 {
		return nil
	}
	return class
}

func (b *balancing) hasRoom(n *place.Node, class *place.Class) bool {
	for dim, amount := range class.Request {
		if amount > 0 && n.Used.At(dim)+b.got[n.Name].At(dim)+amount > n.Allocatable.At(dim) {
			return false
		}
	}
	return true
}
