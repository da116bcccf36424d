package cluster

// Changes is what happened in the model that may help a gang that waits. It says where to look, not what is there: it is
// safe to see too much in it.
type Changes struct {
	// Nodes are the names of nodes that may take pods they did not take before: new, changed, or with room given back.
	Nodes map[string]struct{}
	// Queues says that a queue appeared, changed, or had use given back.
	Queues bool
	// Pods says that a pod appeared, vanished, moved or changed labels, which matters to pods that look at other pods.
	Pods bool
}

// Empty says that nothing happened.
func (ch *Changes) Empty() bool { return len(ch.Nodes) == 0 && !ch.Queues && !ch.Pods }

func (ch *Changes) node(name string) {
	if ch.Nodes == nil {
		ch.Nodes = map[string]struct{}{}
	}
	ch.Nodes[name] = struct{}{}
}

// Changed receives after something changed. One receive may stand for many changes: follow it with TakeChanges.
func (c *Cluster) Changed() <-chan struct{} { return c.wake }

// TakeChanges returns what changed since the last call. There is one taker: the scheduler.
func (c *Cluster) TakeChanges() Changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.changes
	c.changes = Changes{}
	return ch
}

func (c *Cluster) changed(note func(*Changes)) {
	note(&c.changes)
	select {
	case c.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}
