package cluster

import (
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// podGroups holds the queue of each PodGroup, and the pods that name a PodGroup.
type podGroups struct {
	queue map[types.NamespacedName]string
	pods  map[types.NamespacedName]map[*pod]struct{}
}

// join puts a pod into the PodGroup that its object names.
func (g *podGroups) join(p *pod) {
	var name types.NamespacedName
	if p.object != nil {
		name, _ = schedulingv1beta1.GroupOf(p.object)
	}
	if name == p.group {
		return
	}
	g.leave(p)
	if name.Name == "" {
		return
	}
	p.group = name
	if g.pods[name] == nil {
		g.pods[name] = map[*pod]struct{}{}
	}
	g.pods[name][p] = struct{}{}
}

func (g *podGroups) leave(p *pod) {
	if p.group.Name == "" {
		return
	}
	delete(g.pods[p.group], p)
	if len(g.pods[p.group]) == 0 {
		delete(g.pods, p.group)
	}
	p.group = types.NamespacedName{}
}

// UpsertPodGroup sets the queue that a PodGroup's pods count against.
func (c *Cluster) UpsertPodGroup(name types.NamespacedName, queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.groups.queue[name] == queue {
		return
	}
	c.groups.queue[name] = queue
	for p := range c.groups.pods[name] {
		c.settle(p)
	}
}

// DeletePodGroup forgets a PodGroup; its pods keep their queue.
func (c *Cluster) DeletePodGroup(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.groups.queue, name)
}
