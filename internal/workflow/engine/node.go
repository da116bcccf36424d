package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// node is a node of the status together with its place in the tree.
type node struct {
	wf.NodeStatus
	run    *Run
	parent *node // the enclosing node, for progress
	owner  owner
	leaf   *leaf
	known  bool // loaded from the status
	dirty  bool // in Run.altered
	broken bool // ended because the workflow is invalid, not because a program failed
	edges  map[string]bool
	ending []func() // called when the node is fulfilled

	done, total int // progress of the pods inside
}

// owner is notified about a node: once when the node is fulfilled, and each time its phase or
// message changes before that.
type owner interface {
	fulfilled(n *node)
	changed(n *node)
}

// touch marks the node as changed, so that it will be written.
func (n *node) touch() {
	if !n.dirty {
		n.dirty = true
		n.run.altered = append(n.run.altered, n)
	}
}

// set moves the node to a phase. A fulfilled node does not change any more.
func (n *node) set(phase wf.NodePhase, message string) {
	if n.Phase.Fulfilled() || n.Phase == phase && n.Message == message {
		return
	}
	n.run.keep(len(message) - len(n.Message))
	n.Phase, n.Message = phase, message
	n.touch()
	if phase.Fulfilled() {
		n.FinishedAt = metav1.NewTime(n.run.now)
		n.run.queue = append(n.run.queue, n)
		for _, f := range n.ending {
			f()
		}
		return
	}
	if n.owner != nil && !n.run.ended {
		n.owner.changed(n)
	}
}

// reject ends the node in Error because the workflow cannot be executed there.
func (n *node) reject(message string) {
	n.broken = true
	n.set(wf.PhaseError, message)
}

// wasRejected reports whether a node of the status in phase Error was rejected: it never had a pod
// of its own.
func wasRejected(n *wf.NodeStatus) bool {
	switch n.Type {
	case wf.NodeSteps:
		return true
	case wf.NodeDAG:
		return n.Message != ""
	}
	return n.Progress == "" || strings.HasPrefix(n.Message, erroredGroup)
}

// link adds an edge to child, unless it exists.
func (n *node) link(child *node) {
	if n.edges == nil {
		n.edges = map[string]bool{}
		for _, id := range n.Children {
			n.edges[id] = true
		}
	}
	if !n.edges[child.ID] {
		n.edges[child.ID] = true
		n.Children = append(n.Children, child.ID)
		n.touch()
	}
}

// begin initializes the call's node, from the status if it has the node, or else as a new node. It
// reports whether the node was restored fulfilled.
func (r *Run) begin(n *node, c *call, kind wf.NodeType) (restored bool) {
	id := wf.NodeID(r.Workflow.Name, c.name)
	if r.nodes[id] == n && n.run == r && !n.known { // begun before, to wait
		if n.Type = kind; !kind.HasPod() {
			n.set(wf.PhaseRunning, "")
		}
		return false
	}
	if old := r.nodes[id]; old != nil && old.known {
		n.NodeStatus, n.known = old.NodeStatus, true
		n.broken = n.Phase == wf.PhaseError && wasRejected(&n.NodeStatus)
	} else {
		n.NodeStatus = wf.NodeStatus{
			ID: id, Name: c.name, DisplayName: c.display, Type: kind, Phase: wf.PhaseRunning, StartedAt: metav1.NewTime(r.now),
		}
		if c.boundary != nil {
			n.BoundaryID = c.boundary.ID
		}
		n.TemplateName, n.TemplateRef = c.target.template, c.target.ref
		if c.target.ref != nil || c.target.inline != nil {
			n.TemplateName = ""
		}
		if c.from != nil {
			n.TemplateScope = c.from.scope
		}
		if c.hooked || c.retried {
			n.NodeFlag = &wf.NodeFlag{Hooked: c.hooked, Retried: c.retried}
		}
	}
	n.run, n.owner, n.parent = r, c.owner, c.parent
	r.nodes[id] = n
	r.keep(len(c.name) + len(c.display))
	for _, p := range c.edges {
		p.link(n)
	}
	if !n.known {
		n.touch()
		return false
	}
	if n.Phase.Fulfilled() {
		// The nodes in a group are counted one by one.
		if kind != wf.NodeStepGroup && kind != wf.NodeTaskGroup {
			n.count()
		}
		r.queue = append(r.queue, n)
		return true
	}
	return false
}

// count adds the progress of a restored node to all enclosing nodes and to the run.
func (n *node) count() {
	if done, total, ok := ParseProgress(n.Progress); ok {
		n.done, n.total = done, total
		for p := n.parent; p != nil; p = p.parent {
			p.done, p.total = p.done+done, p.total+total
		}
		n.run.done, n.run.total = n.run.done+done, n.run.total+total
	}
}

// ParseProgress parses "N/M". ok is false for any other text, for N > M, M = 0, and M above
// progressMax.
func ParseProgress(text string) (done, total int, ok bool) {
	before, after, found := strings.Cut(text, "/")
	done, err1 := strconv.Atoi(before)
	total, err2 := strconv.Atoi(after)
	ok = found && err1 == nil && err2 == nil && done >= 0 && total > 0 && done <= total && total <= progressMax
	return done, total, ok
}

// progressMax bounds the progress that a pod may report, so that sums do not overflow.
const progressMax = 1_000_000_000

// progress adds to the progress of the node, of all enclosing nodes and of the run.
func (n *node) progress(done, total int) {
	n.run.done, n.run.total = n.run.done+done, n.run.total+total
	for p := n; p != nil; p = p.parent {
		p.done, p.total = p.done+done, p.total+total
		if !n.run.rebuilding {
			p.showProgress()
		}
	}
}

func (n *node) showProgress() {
	if text := fmt.Sprintf("%d/%d", n.done, n.total); text != n.Progress && n.total > 0 {
		n.Progress = text
		n.touch()
	}
}

// outbound returns the nodes from which edges lead to the nodes that follow n.
func (n *node) outbound() []*node {
	r := n.run
	var out []*node
	add := func(ids []string) {
		for _, id := range ids {
			if c := r.nodes[id]; c != nil {
				c.run = r
				out = append(out, c)
			}
		}
	}
	switch n.Type {
	case wf.NodeSteps, wf.NodeDAG:
		if n.MemoizationStatus == nil || !n.MemoizationStatus.Hit {
			add(n.OutboundNodes)
		}
	case wf.NodeStepGroup, wf.NodeTaskGroup:
		for _, id := range n.Children {
			if c := r.nodes[id]; c != nil {
				c.run = r
				out = append(out, c.outbound()...)
			}
		}
	case wf.NodeRetry:
		for _, id := range slices.Backward(n.Children) {
			if c := r.nodes[id]; c != nil && (c.NodeFlag == nil || !c.NodeFlag.Hooked) {
				c.run = r
				return c.outbound()
			}
		}
	}
	if len(out) == 0 {
		return []*node{n}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
