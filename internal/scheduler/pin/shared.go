package pin

import (
	"cmp"
	"slices"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/sharing"
)

// request records what a pod requests for containers that share CPUs. It changes when the pod is
// resized. Of a pod that is only assumed, Grant has recorded it.
func (m *machine) request(name string, pod cluster.PodCPUs) {
	if pod.Object == nil {
		return
	}
	milli := pod.Result.SharedMilli(pod.Object)
	if known, found := m.requested[name]; milli == known && (found || milli == 0) {
		return
	}
	m.requested[name], m.sharing = milli, nil
}

// sharingOf returns the present use of a node by pods that share CPUs.
func (p *Pinner) sharingOf(slot int) *sharing.State {
	n, m := p.nodes[slot], &p.machines[slot]
	if m.sharing == nil || m.sharingAt != n.Version() {
		m.sharing, m.sharingAt = sharing.NewState(n, func(key string) int64 { return m.requested[key] }), n.Version()
	}
	return m.sharing
}

// sharedTriesMax bounds the number of nodes that are tried for a pod that shares its CPUs.
const sharedTriesMax = 8

// placeShared chooses the node, and allocates CPUs there, for a pod whose containers share their CPUs.
// The allocation is nil if no node takes the pod by what it requests.
func (p *Pinner) placeShared(key string, pins *Pins, allowed func(slot int) bool) (int, *allocate.Allocation) {
	best := p.ranks[:0]
	compare := func(a, b rankedNode) int {
		return cmp.Or(a.rank.Compare(b.rank), cmp.Compare(p.machines[a.slot].index, p.machines[b.slot].index))
	}
	for slot := range p.nodes {
		if !allowed(slot) {
			continue
		}
		r := rankedNode{slot, p.sharingOf(slot).Rank(pins.milli, pins.request.CPUs())}
		if r.rank.Grows > 1 || len(best) == sharedTriesMax && compare(r, best[len(best)-1]) >= 0 {
			continue
		}
		if len(best) == sharedTriesMax {
			best = best[:len(best)-1]
		}
		at, _ := slices.BinarySearchFunc(best, r, compare)
		best = slices.Insert(best, at, r)
	}
	p.ranks = best
	for _, r := range best {
		n := p.nodes[r.slot]
		a, err := p.sharingOf(r.slot).Plan(&p.allocator, n, key, pins.request, pins.milli)
		if err == nil && n.Restore(a) == nil {
			return r.slot, a
		}
	}
	return -1, nil
}

// rankedNode is a node for a pod that shares its CPUs.
type rankedNode struct {
	slot int
	rank sharing.Rank
}
