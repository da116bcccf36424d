package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// NodeDatabase has the nodes of workflows that would be too large with them. It is safe for concurrent
// use, and bounds the time of its calls.
type NodeDatabase interface {
	// Read reads a version of the nodes of a workflow, or returns compress.ErrNoNodes.
	Read(ctx context.Context, uid, version string) (wf.Nodes, error)
	Write(ctx context.Context, namespace, uid, version string, nodes []byte) error
	// Collect removes old versions. unused returns those of the versions, by UID, that no workflow has.
	Collect(ctx context.Context, unused func(ctx context.Context, versions map[string][]string) (map[string][]string, error)) error
}

// nodeReads reads nodes of workflows that are in a database: those of an earlier manager, of Argo's
// controller, or of its server on a user's edit. A version of such a workflow is taken in when its
// nodes have been read.
type nodeReads struct {
	c    *Controller
	loop *controlloop.Loop[nodeRead, nodeReading]

	mu    sync.Mutex
	known map[nodeRead]*offloadedNodes
}

type nodeRead struct {
	key     types.NamespacedName
	uid     types.UID
	version string
}

// nodeReading is the state of a read that is under way.
type nodeReading struct {
	failures controlloop.Backoff
	told     bool // an event says why it takes long
}

// offloadedNodes is the result of a read.
type offloadedNodes struct {
	version string
	nodes   wf.Nodes
	err     error
	at      time.Time
}

const (
	// nodesRetryMax bounds the backoff while the database is away.
	nodesRetryMax = 30 * time.Second
	// nodesKept is how long a result is kept for its workflow.
	nodesKept = time.Minute
)

func newNodeReads(c *Controller) *nodeReads {
	n := &nodeReads{c: c, known: map[nodeRead]*offloadedNodes{}}
	n.loop = controlloop.New[nodeRead, nodeReading](controlloop.Config[nodeRead]{
		Name: "workflow-nodes", Workers: 2, Turn: n.read, Clock: c.Clock,
	})
	return n
}

// inDatabase reports whether the nodes of a workflow are in a database.
func inDatabase(w *wf.Workflow) bool {
	_, err := compress.Nodes(&wf.WorkflowStatus{
		OffloadNodeStatusVersion: w.Status.OffloadNodeStatusVersion, CompressedNodes: w.Status.CompressedNodes, Nodes: w.Status.Nodes,
	})
	return errors.Is(err, compress.ErrInDatabase)
}

// waitsForNodes reports whether a version of a workflow cannot be taken in yet, because its nodes are
// being read from the database of the configuration.
func (c *Controller) waitsForNodes(r *record, w *wf.Workflow) bool {
	version := w.Status.OffloadNodeStatusVersion
	if version == "" || c.Nodes == nil || r.run != nil && version == r.moved || w.Status.Phase.Completed() || !inDatabase(w) ||
		r.offloaded != nil && r.offloaded.version == version {
		return false
	}
	if s := c.Settings(); s.Refused == "" && (s.Persistence == nil || !s.Persistence.MoveNodes) {
		return false
	}
	read := nodeRead{informer.KeyOf(w), w.UID, version}
	c.nodeReads.mu.Lock()
	r.offloaded = c.nodeReads.known[read]
	delete(c.nodeReads.known, read)
	c.nodeReads.mu.Unlock()
	if r.offloaded != nil {
		return false
	}
	c.nodeReads.loop.Wake(read)
	return true
}

// nodes returns the nodes of a workflow's version that has been taken in.
func (r *record) nodes(s *wf.WorkflowStatus) (wf.Nodes, error) {
	nodes, err := compress.Nodes(s)
	if errors.Is(err, compress.ErrInDatabase) && r.offloaded != nil && r.offloaded.version == s.OffloadNodeStatusVersion {
		return r.offloaded.nodes, r.offloaded.err
	}
	return nodes, err
}

// read reads the nodes of one version.
func (n *nodeReads) read(x nodeRead) {
	c := n.c
	w, exists := c.Informers.Workflows.Get(x.key.Namespace, x.key.Name)
	if !exists || w.UID != x.uid || w.Status.OffloadNodeStatusVersion != x.version {
		n.loop.Drop(x)
		return
	}
	state := n.loop.Get(x)
	if state == nil {
		state = &nodeReading{failures: controlloop.Backoff{Max: nodesRetryMax}}
		n.loop.Put(x, state)
	}
	if left := state.failures.Left(c.Clock.Now()); left > 0 {
		n.loop.WakeAfter(x, left)
		return
	}
	nodes, err := c.Nodes.Read(n.loop.Context(), string(x.uid), x.version)
	if n.loop.Context().Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, compress.ErrNoNodes) {
		now := c.Clock.Now()
		state.failures.Failed(now)
		c.Log.Warn("a workflow's nodes could not be read from the database; trying again", "workflow", x.key, "error", err)
		if !state.told {
			state.told = true
			c.Writer.Event(w, corev1.EventTypeWarning, "NodesNotRead", shortened(fmt.Sprintf("status.offloadNodeStatusVersion: %v", err)))
		}
		n.loop.WakeAfter(x, state.failures.Left(now))
		return
	}
	if err != nil {
		err = fmt.Errorf("status.offloadNodeStatusVersion: %s: %w", x.version, err)
	}
	n.mu.Lock()
	n.known[x] = &offloadedNodes{version: x.version, nodes: nodes, err: err, at: c.Clock.Now()}
	n.mu.Unlock()
	n.loop.Drop(x)
	c.loop.Wake(x.key)
}

// sweep drops results that no workflow has taken.
func (n *nodeReads) sweep() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for x, result := range n.known {
		if n.c.Clock.Since(result.at) > nodesKept {
			delete(n.known, x)
		}
	}
}

// nodeWrites moves nodes to the database before the statuses are written that name their version, and
// removes versions that no status names any more.
type nodeWrites struct {
	c    *Controller
	loop *controlloop.Loop[nodeWrite, struct{}]
	// collecting is the loop that removes old versions; it has one key.
	collecting *controlloop.Loop[struct{}, struct{}]

	mu    sync.Mutex
	queue map[nodeWrite]*movedNodes
}

// nodeWrite is the number of a status write, see record.writing.
type nodeWrite uint64

// movedNodes is a version of nodes to write.
type movedNodes struct {
	namespace, version string
	uid                types.UID
	nodes              []byte
	done               func(error)
	at                 time.Time // when the database had them
}

const (
	// collectEvery is the interval at which old versions are removed.
	collectEvery = 5 * time.Minute
	// nodesLate is how long the status may take that names a version. After more time, the version may
	// have been removed as one that no workflow names.
	nodesLate = time.Minute
)

// errNodesLate says that a status was written later than nodesLate after its nodes.
var errNodesLate = errors.New("the status was written long after its nodes")

func newNodeWrites(c *Controller) *nodeWrites {
	n := &nodeWrites{c: c, queue: map[nodeWrite]*movedNodes{}}
	n.loop = controlloop.New[nodeWrite, struct{}](controlloop.Config[nodeWrite]{
		Name: "workflow-nodes-moved", Workers: 4, Turn: n.write, Clock: c.Clock,
	})
	n.collecting = controlloop.New[struct{}, struct{}](controlloop.Config[struct{}]{
		Name: "workflow-nodes-collected", Workers: 1, Turn: func(struct{}) { n.collect() }, Clock: c.Clock,
	})
	return n
}

func (n *nodeWrites) run(ctx context.Context) {
	var both sync.WaitGroup
	if n.c.Leads && n.c.Nodes != nil {
		n.collecting.WakeAfter(struct{}{}, collectEvery)
		both.Go(func() { n.collecting.Run(ctx) })
	}
	n.loop.Run(ctx)
	both.Wait()
}

// moves reports whether nodes may be moved to the database.
func (c *Controller) moves() bool {
	p := c.Settings().Persistence
	return c.Nodes != nil && p != nil && p.MoveNodes
}

// nodesVersion names a version of nodes by its content.
func nodesVersion(nodes []byte) string {
	sum := sha256.Sum256(nodes)
	return "sha256:" + hex.EncodeToString(sum[:20])
}

// put queues nodes to write. done is called when they are written, or could not be.
func (n *nodeWrites) put(id uint64, m *movedNodes) {
	n.mu.Lock()
	n.queue[nodeWrite(id)] = m
	n.mu.Unlock()
	n.loop.Wake(nodeWrite(id))
}

func (n *nodeWrites) write(id nodeWrite) {
	n.mu.Lock()
	m := n.queue[id]
	delete(n.queue, id)
	n.mu.Unlock()
	if m == nil {
		return
	}
	err := n.c.Nodes.Write(n.loop.Context(), m.namespace, string(m.uid), m.version, m.nodes)
	if err != nil {
		err = fmt.Errorf("moving the nodes to the database: %w", err)
	}
	m.done(err)
}

// collect removes old versions that no workflow names.
func (n *nodeWrites) collect() {
	ctx := n.collecting.Context()
	if n.c.moves() {
		if err := n.c.Nodes.Collect(ctx, func(ctx context.Context, versions map[string][]string) (map[string][]string, error) {
			exist, err := n.c.Informers.Workflows.Versions(ctx, "")
			return unusedNodes(versions, exist, n.c.Informers.Workflows.List()), err
		}); err != nil && ctx.Err() == nil {
			n.c.Log.Warn("old nodes could not be removed from the database", "error", err)
		}
	}
	n.collecting.WakeAfter(struct{}{}, collectEvery)
}

// unusedNodes returns the versions of nodes that no workflow names. exist are the workflows on the
// server. Versions of workflows that the watch does not show as they are there are kept.
func unusedNodes(versions map[string][]string, exist informer.Versions, watched []*wf.Workflow) map[string][]string {
	by := map[types.UID]*wf.Workflow{}
	for _, w := range watched {
		by[w.UID] = w
	}
	out := map[string][]string{}
	for uid, list := range versions {
		at, exists := exist.Of[types.UID(uid)]
		w := by[types.UID(uid)]
		if exists && (w == nil || informer.Older(w.ResourceVersion, at)) {
			continue
		}
		for _, version := range list {
			if !exists || w.Status.OffloadNodeStatusVersion != version {
				out[uid] = append(out[uid], version)
			}
		}
	}
	return out
}
