package cluster

import (
	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	"lockstep.dev/lockstep/internal/scheduler/network"
)

// UpsertHyperNode stores the API server's state of a HyperNode.
func (c *Cluster) UpsertHyperNode(h *hypernodev1alpha1.HyperNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.network.SetHyperNode(h) {
		c.changed(func(ch *Changes) { ch.Network = true })
	}
}

// DeleteHyperNode removes a HyperNode.
func (c *Cluster) DeleteHyperNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.network.RemoveHyperNode(name) {
		c.changed(func(ch *Changes) { ch.Network = true })
	}
}

// Network returns the domains of the network. It returns the same Tree until the domains may have
// changed.
func (c *Cluster) Network() *network.Tree {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.network.Tree()
}
