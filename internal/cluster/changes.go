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

// Changed receives after something changed that is listened for. One receive may stand for many changes: follow it with TakeChanges.
func (c *Cluster) Changed() <-chan struct{} { return c.wake }

// TakeChanges returns what changed since the last call. There is one taker: the scheduler.
func (c *Cluster) TakeChanges() Changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.changes
	c.changes = Changes{}
	return ch
}

// Listen says which changes are worth a wake-up: any that may make room or lift a queue's limit, and those of other pods.
// While nothing waits none is, which spares a cycle for every pod that comes and goes. Changes are noted all the same; those
// noted before are told of at once.
func (c *Cluster) Listen(room, pods bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listenRoom, c.listenPods = room, pods
	c.ring()
}

func (c *Cluster) changed(note func(*Changes)) {
	note(&c.changes)
	c.ring()
}

// ring wakes who listens, if there is something for it.
func (c *Cluster) ring() {
	ch := &c.changes
	if !(c.listenRoom && (len(ch.Nodes) > 0 || ch.Queues) || c.listenPods && ch.Pods) {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}
