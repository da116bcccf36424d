package controller

import (
	"context"
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

// ErrNoNodes says that the database does not have the nodes of a workflow, or not in a readable form.
var ErrNoNodes = errors.New("the database does not have them")

// nodeReads reads nodes of workflows that Argo's controller, or its server on a user's edit, moved to
// a database. A version of such a workflow is taken in when its nodes have been read. Statuses that
// this controller writes have their nodes.
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
	// nodesTimeout bounds one read.
	nodesTimeout = 30 * time.Second
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
	if version == "" || c.ReadNodes == nil || w.Status.Phase.Completed() || !inDatabase(w) ||
		r.offloaded != nil && r.offloaded.version == version {
		return false
	}
	if s := c.Settings(); s.Refused == "" && (s.Persistence == nil || !s.Persistence.ReadNodes) {
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
	nodes, err := n.ask(x)
	if n.loop.Context().Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, ErrNoNodes) {
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

func (n *nodeReads) ask(x nodeRead) (wf.Nodes, error) {
	s := n.c.Settings()
	switch {
	case s.Refused != "":
		return nil, errors.New("the configuration of workflows is not known: " + s.Refused)
	case s.Persistence == nil || !s.Persistence.ReadNodes:
		return nil, fmt.Errorf("the configuration of workflows names no database any more: %w", ErrNoNodes)
	}
	ctx, cancel := context.WithTimeout(n.loop.Context(), nodesTimeout)
	defer cancel()
	return n.c.ReadNodes(ctx, s, string(x.uid), x.version)
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
