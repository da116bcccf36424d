package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// assertConsistent recounts everything that the model maintains incrementally, and returns the
// differences. It is for tests.
func (c *Cluster) assertConsistent() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	used, nonZero := map[string]place.Vector{}, map[string]place.Vector{}
	byQueue := map[string]place.Vector{}
	ports := map[string]int{}
	keepAway, pinned := 0, map[string]int{}
	inQueue := map[string]int{}
	jobs, namespaces := map[string]map[string]int{}, map[string]map[string]place.Vector{}
	for name, p := range c.pods {
		want := c.reservationOf(p)
		if !p.reserved.same(&want) {
			bad("pod %s holds %+v, should %+v", name, p.reserved, want)
		}
		if p.assume == nil && (p.object == nil || ended(p.object)) {
			bad("pod %s is nothing and still there", name)
		}
		if is, ok := p.occupant(); p.known != nil && (!ok || !p.known.same(&is)) {
			bad("pod %s is known as %+v, is %+v", name, p.known, is)
		}
		if _, listed := c.assumed[p]; listed != (p.assume != nil) {
			bad("pod %s: listed as assumed: %v", name, listed)
		}
		h := p.reserved
		if h.node == "" {
			continue
		}
		if _, there := c.nodes[h.node].pods[p]; !there {
			bad("pod %s is not listed on node %s", name, h.node)
		}
		if h.keepsAway {
			keepAway++
		}
		if h.cpus != nil {
			pinned[h.node]++
		}
		used[h.node] = used[h.node].Plus(h.request, 1)
		nonZero[h.node] = nonZero[h.node].Plus(h.nonZero, 1)
		ports[h.node] += len(h.ports)
		if h.queue != "" {
			byQueue[h.queue] = byQueue[h.queue].Plus(h.request, 1)
			if c.queues[h.queue].pods[h.priority] == 0 {
				bad("pod %s of priority %d is not counted in its queue", name, h.priority)
			}
			inQueue[h.queue]++
			if jobs[h.queue] == nil {
				jobs[h.queue], namespaces[h.queue] = map[string]int{}, map[string]place.Vector{}
			}
			if h.job != "" {
				jobs[h.queue][h.job]++
			}
			namespaces[h.queue][name.Namespace] = namespaces[h.queue][name.Namespace].Plus(h.request, 1)
		}
	}
	if keepAway != c.antiAffine {
		bad("keeping away %d, should %d", c.antiAffine, keepAway)
	}
	var total place.Vector
	claimed := map[string]place.Vector{}
	for _, list := range c.claims {
		for _, k := range list {
			claimed[k.Node] = claimed[k.Node].Plus(k.Class.Request, 1)
		}
	}
	gone := 0
	for name, n := range c.nodes {
		if !sameAmounts(n.used, used[name]) || !sameAmounts(n.usedNonZero, nonZero[name]) {
			bad("node %s: used %v and %v, should %v and %v", name, n.used, n.usedNonZero, used[name], nonZero[name])
		}
		if !sameAmounts(n.claimed, claimed[name]) {
			bad("node %s: %v claimed, should %v", name, n.claimed, claimed[name])
		}
		if n.pinned != pinned[name] {
			bad("node %s: %d pods pinned, should %d", name, n.pinned, pinned[name])
		}
		count := 0
		for _, k := range n.ports {
			count += k
		}
		if count != ports[name] {
			bad("node %s: %d ports, should %d", name, count, ports[name])
		}
		if n.object == nil {
			gone++
		} else if !n.object.Spec.Unschedulable {
			total = total.Plus(n.allocatable, 1)
		}
	}
	for _, n := range c.nodes {
		n.occupants() // makes what later calls compare
	}
	if gone != c.gone || len(c.nodes) != c.recent.Len() {
		bad("%d nodes gone, should %d; %d in order of change, should %d", c.gone, gone, c.recent.Len(), len(c.nodes))
	}
	if !sameAmounts(total, c.total) {
		bad("total %v, should %v", c.total, total)
	}
	for name, q := range c.queues {
		if !sameAmounts(q.used, byQueue[name]) {
			bad("queue %s: used %v, should %v", name, q.used, byQueue[name])
		}
		pods := 0
		for _, n := range q.pods {
			pods += n
		}
		if pods != inQueue[name] {
			bad("queue %s: %d pods by priority, should %d", name, pods, inQueue[name])
		}
		if !maps.Equal(q.jobs, jobs[name]) {
			bad("queue %s: jobs %v, should %v", name, q.jobs, jobs[name])
		}
		if q.namespaces != nil && !maps.EqualFunc(q.namespaces, namespaces[name], sameAmounts) {
			bad("queue %s: by namespace %v, should %v", name, q.namespaces, namespaces[name])
		}
	}
	return errors.Join(errs...)
}

// same compares what the model says of pods. The gang of an existing pod is the scheduler's.
func (o *Occupant) same(p *Occupant) bool {
	return o.Name == p.Name && o.Object == p.Object && o.Node == p.Node && o.Queue == p.Queue &&
		(o.Object != nil || o.Gang == p.Gang) && slices.Equal(o.Request, p.Request) &&
		slices.Equal(o.NonZero, p.NonZero) && slices.Equal(o.Ports, p.Ports)
}

// sameAmounts compares vectors whose lengths may differ by trailing zeros.
func sameAmounts(a, b place.Vector) bool {
	return !slices.ContainsFunc(a.Plus(b, -1), func(d int64) bool { return d != 0 })
}
