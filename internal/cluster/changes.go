package cluster

// Changes describes changes of the model that may help a waiting gang. It may also contain changes
// that help none.
type Changes struct {
	// Nodes holds the names of nodes that may take pods they did not take before: new or changed
	// nodes, and nodes that have resources released.
	Nodes map[string]struct{}
	// Queues reports that a queue appeared, changed, or had use released.
	Queues bool
	// Pods reports that a pod appeared, vanished, moved or changed labels, which matters to pods
	// with inter-pod constraints.
	Pods bool
	// Volumes reports that a claim, a volume or a storage class changed.
	Volumes bool
}

// Empty reports whether nothing changed.
func (ch *Changes) Empty() bool { return len(ch.Nodes) == 0 && !ch.Queues && !ch.Pods && !ch.Volumes }

func (ch *Changes) node(name string) {
	if ch.Nodes == nil {
		ch.Nodes = map[string]struct{}{}
	}
	ch.Nodes[name] = struct{}{}
}

// Changed returns a channel that receives after a change that Listen selects. One receive may stand
// for many changes: follow it with TakeChanges.
func (c *Cluster) Changed() <-chan struct{} { return c.wake }

// TakeChanges returns the changes since the last call. Its only caller is the scheduler.
func (c *Cluster) TakeChanges() Changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.changes
	c.changes = Changes{}
	return ch
}

// Listen selects the changes that send a wake-up: room selects changes that may free resources or
// lift a queue's limit, and pods selects changes of other pods and of volumes. While no gang waits, the scheduler
// selects none, which saves a cycle for every pod that is created or deleted. Changes are recorded
// in any case; recorded changes that are now selected send a wake-up at once.
func (c *Cluster) Listen(room, pods bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listenRoom, c.listenPods = room, pods
	c.notify()
}

// VolumesChanged records that a claim, a volume or a storage class changed. The model does not have
// them.
func (c *Cluster) VolumesChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed(func(ch *Changes) { ch.Volumes = true })
}

func (c *Cluster) changed(note func(*Changes)) {
	note(&c.changes)
	c.notify()
}

// notify sends a wake-up if there are selected changes.
func (c *Cluster) notify() {
	ch := &c.changes
	if !(c.listenRoom && (len(ch.Nodes) > 0 || ch.Queues) || c.listenPods && (ch.Pods || ch.Volumes)) {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}
